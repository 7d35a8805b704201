// What a model says: greedy tokens and the logits of each, of a prompt of random tokens in batches,
// then one by one. run.sh compares two of its outputs, with and without Fulmen.
//
//   logits MODEL.gguf PROMPT_TOKENS NEW_TOKENS K_TYPE V_TYPE THREADS
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "llama.h"

namespace {

ggml_type type_of(const char* name) {
  for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
    const char* known = ggml_type_name(static_cast<ggml_type>(type));
    if (known != nullptr && std::strcmp(known, name) == 0) return static_cast<ggml_type>(type);
  }
  std::fprintf(stderr, "logits: no type is called %s\n", name);
  std::exit(2);
}

void decode(llama_context* context, std::vector<llama_token> tokens) {
  if (llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()))))
    std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return std::fprintf(stderr, "logits: 6 arguments are needed\n"), 2;
  const int prompt = std::atoi(argv[2]), fresh = std::atoi(argv[3]), threads = std::atoi(argv[6]);
  ggml_backend_load_all();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;
  llama_context_params parameters = llama_context_default_params();
  parameters.n_ctx = static_cast<uint32_t>(prompt + fresh);
  parameters.type_k = type_of(argv[4]);
  parameters.type_v = type_of(argv[5]);
  parameters.n_threads = parameters.n_threads_batch = threads;
  parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  llama_context* context = llama_init_from_model(model, parameters);
  if (context == nullptr) return 1;

  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::mt19937 random(1);
  std::vector<llama_token> batch;
  for (int i = 0; i < prompt; ++i) {
    batch.push_back(static_cast<llama_token>(random() % static_cast<unsigned>(vocab)));
    if (static_cast<int>(batch.size()) == 512 || i + 1 == prompt) {
      decode(context, batch);
      batch.clear();
    }
  }
  for (int i = 0; i < fresh; ++i) {
    const float* logits = llama_get_logits_ith(context, -1);
    int best = 0;
    for (int token = 0; token < vocab; ++token)
      if (logits[token] > logits[best]) best = token;
    std::printf("%d", best);
    for (int token = 0; token < vocab; ++token)
      std::printf(" %.6g", static_cast<double>(logits[token]));
    std::printf("\n");
    if (i + 1 < fresh) decode(context, {best});
  }
  llama_free(context);
  llama_model_free(model);
  return 0;
}
