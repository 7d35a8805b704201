// A graph as instructions over registers of many elements: what the CPU kernels interpret. A value
// is computed once a tile, once a query, once a key, once for each distance of a query and a key,
// or for each pair, as it varies.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "score/node.h"

namespace fulmen::score {

// What a value varies with in a tile of one head. A distance is q - k: a tile of m queries and n
// keys has m + n - 1 of them.
enum class Rank : uint8_t { tile, query, key, distance, pair };
constexpr int kRanks = 5;
// What a value with these dependences varies with, distances aside; a score varies with both.
Rank rank_of(const Dependence& of);

// Where an argument is. An operation on pairs reads what varies with queries, distances and pairs
// as it is, a run of queries for each key. All else has the result's rank.
struct Operand {
  Rank rank = Rank::tile;
  bool scores = false;  // the tile's own, in no register; their rank is pair
  int32_t index = 0;    // of the rank's registers
};

struct Instruction {
  Op op = Op::constant;
  Rank rank = Rank::tile;  // of the result
  // One argument as values of the result's rank, without an operation.
  bool expands = false;
  uint8_t arguments = 0;
  uint8_t tensor = 0;
  Type type = Type::real;  // of the result
  int32_t to = 0;          // register of the rank
  Operand args[kMaxArguments] = {};
  float real = 0;  // of a constant
  int32_t integer = 0;
};

struct Bytecode {
  // In order: what is done once a tile, all of the ranks but pair and expansions to pairs that are
  // the same for all keys; then what is done for each few keys.
  std::vector<Instruction> once, pairs;
  int32_t registers[kRanks] = {};  // how many there are of each rank
  std::vector<Operand> results;    // of each of the graph's: of the ranks query, distance and pair

  bool any() const noexcept { return !results.empty(); }
};

// The bytecode of a graph, all of whose results are asked for pairs.
Bytecode compile(const Graph& graph);

}  // namespace fulmen::score
