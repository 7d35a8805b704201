// Tokens per second behind a long context: of a prompt, then of new tokens one by one. The context
// comes from a file, which the first run writes, so that a run does not compute it again.
//
//   depth MODEL.gguf STATE_FILE CONTEXT_TOKENS PROMPT_TOKENS NEW_TOKENS K_TYPE V_TYPE THREADS
//   CLOCK
//
// CLOCK is wall, or processor: the time that the process has taken, with one thread. Prints the two
// rates, then the last token's logits.
#include <chrono>
#include <ctime>
#include <string_view>

#include "session.h"

int main(int argc, char** argv) {
  if (argc != 10) return std::fprintf(stderr, "depth: 9 arguments are needed\n"), 2;
  const int depth = std::atoi(argv[3]), prompt = std::atoi(argv[4]), fresh = std::atoi(argv[5]);
  Session session(argv[1], depth + prompt + fresh, argv[6], argv[7], std::atoi(argv[8]));
  std::size_t tokens = 0;
  std::vector<llama_token> none(1);
  if (llama_state_seq_load_file(session.context, argv[2], 0, none.data(), none.size(), &tokens) ==
      0) {
    session.decode_random(depth);
    if (llama_state_seq_save_file(session.context, argv[2], 0, none.data(), 0) == 0)
      return std::fprintf(stderr, "depth: %s cannot be written\n", argv[2]), 1;
  }
  session.random.seed(2);

  const bool processor = std::string_view(argv[9]) == "processor";
  const auto now = [&] {
    if (processor) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(time).count();
  };
  const auto rate_of = [&](int count, const auto& run) {
    const double start = now();
    run();
    return count / (now() - start);
  };
  std::printf("%.6g\n", rate_of(prompt, [&] { session.decode_random(prompt); }));
  std::printf("%.6g\n", rate_of(fresh, [&] {
                for (int i = 0; i < fresh; ++i) session.decode_random(1);
              }));
  const float* logits = llama_get_logits_ith(session.context, -1);
  for (int token = 0; token < session.vocab; ++token)
    std::printf(" %.6g", static_cast<double>(logits[token]));
  std::printf("\n");
  return 0;
}
