// The library behind a run-time compiler that makes the code: here it is only there.
extern "C" __attribute__((visibility("default"))) int fulmen_fake_generator();
int fulmen_fake_generator() { return 0; }
