#include "score/bytecode.h"

#include <cstddef>
#include <map>
#include <utility>

#include "score/distance.h"

namespace fulmen::score {
namespace {

class Compiler {
 public:
  explicit Compiler(const Graph& graph) : graph_(graph) {
    const std::vector<bool> by_distance = vary_with_distance(graph.nodes);
    for (const Dependence& of : dependences(graph.nodes))
      ranks_.push_back(by_distance[ranks_.size()] ? Rank::distance : rank_of(of));
  }

  Bytecode compile() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      // Where distances are wanted of a query or a key, they are computed from it again.
      if (graph_.nodes[i].op != Op::score) compute(i, ranks_[i]);
    }
    for (const int32_t result : graph_.results) {
      const auto i = static_cast<std::size_t>(result);
      // A tile's scores are overwritten while results are read.
      code_.results.push_back(is_score(i) ? whole_pairs(i) : of_pairs(i));
    }
    drop_unread();
    for (int rank = 0; rank < kRanks; ++rank) share_registers(static_cast<Rank>(rank));
    return std::move(code_);
  }

 private:
  bool is_score(std::size_t i) const { return graph_.nodes[i].op == Op::score; }
  std::vector<Instruction>& part(const Instruction& one) {
    const bool once = one.rank != Rank::pair || (one.expands && one.args[0].rank == Rank::query);
    return once ? code_.once : code_.pairs;
  }
  Operand add(Instruction& one, std::size_t i) {
    one.type = graph_.nodes[i].type;
    one.to = code_.registers[static_cast<int>(one.rank)]++;
    part(one).push_back(one);
    return places_[{i, one.rank}] = {one.rank, false, one.to};
  }

  Operand compute(std::size_t i, Rank rank) {
    const Node& from = graph_.nodes[i];
    Instruction to;
    to.op = from.op;
    to.rank = rank;
    to.arguments = from.arguments;
    to.tensor = from.tensor;
    to.real = static_cast<float>(from.constant.real);
    to.integer = from.constant.integer;
    for (int a = 0; a < from.arguments; ++a) {
      const auto argument = static_cast<std::size_t>(from.args[static_cast<std::size_t>(a)]);
      to.args[a] = rank != Rank::pair    ? place(argument, rank)
                   : from.op == Op::load ? whole_pairs(argument)
                                         : of_pairs(argument);
    }
    return add(to, i);
  }
  Operand expand(std::size_t i, const Operand& from, Rank rank) {
    Instruction to;
    to.expands = true;
    to.rank = rank;
    to.arguments = 1;
    to.args[0] = from;
    return add(to, i);
  }

  // A node's value in another rank than pair.
  Operand place(std::size_t i, Rank rank) {
    const auto known = places_.find({i, rank});
    if (known != places_.end()) return known->second;
    if (ranks_[i] == Rank::tile) return expand(i, places_.at({i, Rank::tile}), rank);
    return compute(i, rank);
  }
  // A node's value where pairs are computed.
  Operand of_pairs(std::size_t i) {
    if (is_score(i)) return {Rank::pair, true, 0};
    switch (ranks_[i]) {
      case Rank::tile:
        return place(i, Rank::query);
      case Rank::key:
        return whole_pairs(i);
      default:
        return place(i, ranks_[i]);
    }
  }
  // The same as a register of pairs.
  Operand whole_pairs(std::size_t i) {
    const auto known = places_.find({i, Rank::pair});
    if (known != places_.end()) return known->second;
    return expand(i, ranks_[i] == Rank::key ? places_.at({i, Rank::key}) : of_pairs(i), Rank::pair);
  }

  // Ints of queries and keys that only distances were computed from.
  void drop_unread() {
    std::vector<char> read[kRanks];
    for (int rank = 0; rank < kRanks; ++rank)
      read[rank].resize(static_cast<std::size_t>(code_.registers[rank]));
    const auto mark = [&](const Operand& of) {
      if (!of.scores) read[static_cast<int>(of.rank)][static_cast<std::size_t>(of.index)] = 1;
    };
    for (const Operand& result : code_.results) mark(result);
    for (std::vector<Instruction>* list : {&code_.pairs, &code_.once}) {
      std::vector<Instruction> kept;
      for (std::size_t at = list->size(); at-- > 0;) {
        const Instruction& one = (*list)[at];
        if (read[static_cast<int>(one.rank)][static_cast<std::size_t>(one.to)] == 0) continue;
        for (int a = 0; a < one.arguments; ++a) mark(one.args[a]);
        kept.push_back(one);
      }
      list->assign(kept.rbegin(), kept.rend());
    }
  }

  // A rank's registers are many elements: one that is not read any more serves again, so that they
  // stay in the first cache. What is made once and read for each few keys stays.
  void share_registers(Rank rank) {
    auto& registers = code_.registers[static_cast<int>(rank)];
    const auto count = static_cast<std::size_t>(registers);
    std::vector<std::size_t> last(count, 0);
    std::vector<char> made_once(count, 0), kept(count, 0);
    std::vector<int32_t> to(count, -1), free;
    const auto mine = [&](const Operand& of) { return of.rank == rank && !of.scores; };
    for (const Instruction& one : code_.once) {
      if (one.rank == rank) made_once[static_cast<std::size_t>(one.to)] = 1;
    }
    for (const Operand& result : code_.results) {
      if (mine(result)) kept[static_cast<std::size_t>(result.index)] = 1;
    }
    std::size_t at = 0;
    for (std::vector<Instruction>* list : {&code_.once, &code_.pairs}) {
      for (const Instruction& one : *list) {
        for (int a = 0; a < one.arguments; ++a) {
          if (!mine(one.args[a])) continue;
          const auto argument = static_cast<std::size_t>(one.args[a].index);
          last[argument] = at;
          if (list == &code_.pairs && made_once[argument] != 0) kept[argument] = 1;
        }
        ++at;
      }
    }
    registers = 0;
    at = 0;
    for (std::vector<Instruction>* list : {&code_.once, &code_.pairs}) {
      for (Instruction& one : *list) {
        // The result's first: no operation finds an argument overwritten.
        if (one.rank == rank) {
          int32_t& place = to[static_cast<std::size_t>(one.to)];
          place = free.empty() ? registers++ : free.back();
          if (!free.empty()) free.pop_back();
          one.to = place;
        }
        for (int a = 0; a < one.arguments; ++a) {
          if (!mine(one.args[a])) continue;
          const auto argument = static_cast<std::size_t>(one.args[a].index);
          one.args[a].index = to[argument];
          if (kept[argument] != 0 || last[argument] != at) continue;
          kept[argument] = 1;  // once, also where it is read twice
          free.push_back(to[argument]);
        }
        ++at;
      }
    }
    for (Operand& result : code_.results) {
      if (mine(result)) result.index = to[static_cast<std::size_t>(result.index)];
    }
  }

  const Graph& graph_;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::size_t, Rank>, Operand> places_;
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
