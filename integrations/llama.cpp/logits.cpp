// What a model says: greedy tokens and the logits of each, of a prompt of random tokens in batches,
// then one by one. run.py compares two of its outputs, with and without Fulmen.
//
//   logits MODEL.gguf PROMPT_TOKENS NEW_TOKENS K_TYPE V_TYPE THREADS
#include "session.h"

int main(int argc, char** argv) {
  if (argc != 7) return std::fprintf(stderr, "logits: 6 arguments are needed\n"), 2;
  const int prompt = std::atoi(argv[2]), fresh = std::atoi(argv[3]);
  Session session(argv[1], prompt + fresh, argv[4], argv[5], std::atoi(argv[6]));
  session.decode_random(prompt);
  for (int i = 0; i < fresh; ++i) {
    const float* logits = llama_get_logits_ith(session.context, -1);
    int best = 0;
    for (int token = 0; token < session.vocab; ++token)
      if (logits[token] > logits[best]) best = token;
    std::printf("%d", best);
    for (int token = 0; token < session.vocab; ++token)
      std::printf(" %.6g", static_cast<double>(logits[token]));
    std::printf("\n");
    if (i + 1 < fresh) session.decode({best});
  }
  return 0;
}
