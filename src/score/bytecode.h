// A graph as instructions over registers of many elements: what the CPU kernels interpret. A value
// is computed once a tile, once a query, once a key, or for each pair, as it varies.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "score/node.h"

namespace fulmen::score {

// What a value varies with in a tile of one head.
enum class Rank : uint8_t { tile, query, key, pair };
constexpr int kRanks = 4;
// What a value with these dependences varies with; a score varies with both.
Rank rank_of(const Dependence& of);

struct Instruction {
  Op op = Op::constant;
  Rank rank = Rank::tile;  // of the result, and of all arguments
  // Another rank than the result's: an expansion of one argument, without an operation.
  bool expands = false;
  Rank from = Rank::tile;
  uint8_t arguments = 0;
  uint8_t tensor = 0;
  Type type = Type::real;  // of the result
  int32_t to = 0;          // registers of the rank
  int32_t args[kMaxArguments] = {};
  float real = 0;  // of a constant
  int32_t integer = 0;
};

struct Bytecode {
  // In order: those of the ranks tile, query and key; expansions to pairs that are the same for all
  // keys; then what is done for each few keys.
  std::vector<Instruction> once, pairs;
  int32_t registers[kRanks] = {};  // how many there are of each rank
  std::vector<int32_t> results;    // registers of rank pair, of each of the graph's

  bool any() const noexcept { return !results.empty(); }
};

// Of a graph, all of whose results come as pairs.
Bytecode compile(const Graph& graph);

}  // namespace fulmen::score
