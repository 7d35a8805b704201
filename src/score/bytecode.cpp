#include "score/bytecode.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace fulmen::score {
namespace {

constexpr int kPair = static_cast<int>(Rank::pair);

class Compiler {
 public:
  explicit Compiler(const Graph& graph) : graph_(graph) {
    for (const Dependence& of : dependences(graph.nodes)) ranks_.push_back(rank_of(of));
  }

  Bytecode compile() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) node(i);
    for (const int32_t result : graph_.results)
      code_.results.push_back(place(static_cast<std::size_t>(result), Rank::pair));
    share_registers();
    return std::move(code_);
  }

 private:
  std::vector<Instruction>& part(const Instruction& one) {
    // A tile's or a query's value as pairs is the same for all keys.
    const bool once = one.rank != Rank::pair || (one.expands && one.from != Rank::key);
    return once ? code_.once : code_.pairs;
  }
  int32_t next(Rank rank) { return code_.registers[static_cast<int>(rank)]++; }

  void node(std::size_t i) {
    const Node& from = graph_.nodes[i];
    Instruction to;
    to.op = from.op;
    to.rank = ranks_[i];
    to.type = from.type;
    to.arguments = from.arguments;
    to.tensor = from.tensor;
    to.real = static_cast<float>(from.constant.real);
    to.integer = from.constant.integer;
    for (int a = 0; a < from.arguments; ++a)
      to.args[a] = place(static_cast<std::size_t>(from.args[a]), to.rank);
    to.to = next(to.rank);
    places_[{i, to.rank}] = to.to;
    part(to).push_back(to);
  }

  // The register that has a node's value in a rank.
  int32_t place(std::size_t i, Rank rank) {
    const auto known = places_.find({i, rank});
    if (known != places_.end()) return known->second;
    Instruction to;
    to.expands = true;
    to.rank = rank;
    to.from = ranks_[i];
    to.type = graph_.nodes[i].type;
    to.arguments = 1;
    to.args[0] = places_.at({i, ranks_[i]});
    to.to = next(rank);
    places_[{i, rank}] = to.to;
    part(to).push_back(to);
    return to.to;
  }

  // Registers of pairs that are computed for each few keys are many elements: one that is not read
  // any more serves again, so that they stay in the first cache.
  void share_registers() {
    const auto count = static_cast<std::size_t>(code_.registers[kPair]);
    std::vector<std::size_t> last(count, 0);
    std::vector<char> kept(count, 0);
    std::vector<int32_t> to(count, -1), free;
    for (std::size_t at = 0; at < code_.pairs.size(); ++at) {
      const Instruction& one = code_.pairs[at];
      for (int a = 0; a < one.arguments && !one.expands; ++a)  // an expansion reads a key's
        last[static_cast<std::size_t>(one.args[a])] = at;
    }
    int32_t used = 0;
    for (Instruction& one : code_.once) {
      if (one.rank != Rank::pair) continue;
      kept[static_cast<std::size_t>(one.to)] = 1;
      one.to = to[static_cast<std::size_t>(one.to)] = used++;
    }
    for (const int32_t result : code_.results) kept[static_cast<std::size_t>(result)] = 1;
    for (std::size_t at = 0; at < code_.pairs.size(); ++at) {
      Instruction& one = code_.pairs[at];
      // The result's first: no operation finds an argument overwritten.
      int32_t& mine = to[static_cast<std::size_t>(one.to)];
      if (free.empty()) {
        mine = used++;
      } else {
        mine = free.back();
        free.pop_back();
      }
      one.to = mine;
      for (int a = 0; a < one.arguments && !one.expands; ++a) {
        const auto argument = static_cast<std::size_t>(one.args[a]);
        one.args[a] = to[argument];
        if (kept[argument] != 0 || last[argument] != at) continue;
        kept[argument] = 1;  // once, also where it is read twice
        free.push_back(to[argument]);
      }
    }
    for (int32_t& result : code_.results) result = to[static_cast<std::size_t>(result)];
    code_.registers[kPair] = used;
  }

  const Graph& graph_;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::size_t, Rank>, int32_t> places_;
  Bytecode code_;
};

}  // namespace

Rank rank_of(const Dependence& of) {
  if (of.score || (of.query && of.key)) return Rank::pair;
  return of.query ? Rank::query : of.key ? Rank::key : Rank::tile;
}

Bytecode compile(const Graph& graph) {
  if (graph.results.empty()) return {};
  return Compiler(graph).compile();
}

}  // namespace fulmen::score
