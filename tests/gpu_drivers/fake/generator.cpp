// Stands for the code generator's library that a run-time compiler opens; it does nothing.
extern "C" __attribute__((visibility("default"))) int fulmen_fake_generator();
int fulmen_fake_generator() { return 0; }
