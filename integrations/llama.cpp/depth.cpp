// Tokens per second behind a long context: of a prompt, then of new tokens one by one. The context
// comes from a file, which the first run writes, so that a run does not compute it again.
//
//   depth MODEL.gguf STATE_FILE CONTEXT_TOKENS PROMPT_TOKENS NEW_TOKENS K_TYPE V_TYPE THREADS
//
// Prints the two rates, then the last token's logits.
#include <chrono>

#include "session.h"

int main(int argc, char** argv) {
  if (argc != 9) return std::fprintf(stderr, "depth: 8 arguments are needed\n"), 2;
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

  const auto rate_of = [](int count, const auto& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    return count / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
