// A model and its context, for the programs that run.py builds against an unchanged llama.cpp.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "llama.h"

struct Session {
  llama_model* model = nullptr;
  llama_context* context = nullptr;
  int vocab = 0;
  std::mt19937 random{1};

  // K's and V's types are ggml's names; `tokens` is what the context holds at most.
  Session(const char* path, int tokens, const char* k_type, const char* v_type, int threads) {
    ggml_backend_load_all();
    model = llama_model_load_from_file(path, llama_model_default_params());
    if (model == nullptr) std::exit(1);
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = static_cast<uint32_t>(tokens);
    parameters.type_k = type_of(k_type);
    parameters.type_v = type_of(v_type);
    parameters.n_threads = parameters.n_threads_batch = threads;
    parameters.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    context = llama_init_from_model(model, parameters);
    if (context == nullptr) std::exit(1);
    vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() {
    llama_free(context);
    llama_model_free(model);
  }

  void decode(std::vector<llama_token> tokens) {
    if (llama_decode(context, llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()))))
      std::exit(1);
  }

  // A prompt of so many random tokens, in batches of 512.
  void decode_random(int tokens) {
    for (; tokens > 0; tokens -= 512) {
      std::vector<llama_token> batch(static_cast<std::size_t>(tokens < 512 ? tokens : 512));
      for (llama_token& token : batch)
        token = static_cast<llama_token>(random() % static_cast<unsigned>(vocab));
      decode(batch);
    }
  }

 private:
  static ggml_type type_of(const char* name) {
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
      const char* known = ggml_type_name(static_cast<ggml_type>(type));
      if (known != nullptr && std::strcmp(known, name) == 0) return static_cast<ggml_type>(type);
    }
    std::fprintf(stderr, "no type is called %s\n", name);
    std::exit(2);
  }
};
