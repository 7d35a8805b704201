#include "cpu/pairs_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "cpu/embedded_headers.h"
#include "cpu/tile/tile_function.h"

namespace fulmen::cpu {
namespace {

using score::Instruction;
using score::Op;
using score::Operand;
using score::Rank;

// Lines of a header but those that say what the text as a whole says.
std::string without_includes(std::string_view text) {
  std::string kept;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, length);
    text.remove_prefix(length);
    if (!line.starts_with("#include \"") && !line.starts_with("#pragma once")) kept += line;
  }
  return kept;
}

bool takes_reals(const Instruction& one, int argument) {
  switch (one.op) {
    case Op::less:
    case Op::less_equal:
    case Op::equal:
    case Op::not_equal:
    case Op::is_nan:
    case Op::real_to_int:
      return true;
    case Op::select:
      return argument > 0 && one.type == score::Type::real;
    case Op::load:
    case Op::int_to_real:
      return false;
    default:
      return one.type == score::Type::real;
  }
}

// A lambda that makes an element of what is stored, and the stored type.
struct Stored {
  const char *type, *convert;
};
Stored stored(DType dtype) {
  switch (dtype) {
    case DType::fp16:
      return {"uint16_t", "[](uint16_t x) { return fp16_bits(x); }"};
    case DType::bf16:
      return {"uint16_t", "[](uint16_t x) { return bf16_bits(x); }"};
    case DType::int64:
      return {"int64_t",
              "[](int64_t x) { return static_cast<int32_t>(x > 2147483647 ? 2147483647 : "
              "x < -2147483648LL ? -2147483648LL : x); }"};
    case DType::int32:
      return {"int32_t", "[](int32_t x) { return x; }"};
    case DType::int8:
      return {"int8_t", "[](int8_t x) { return int32_t{x}; }"};
    case DType::uint8:
      return {"uint8_t", "[](uint8_t x) { return int32_t{x}; }"};
    case DType::boolean:
      return {"uint8_t", "[](uint8_t x) { return int32_t{x != 0}; }"};
    default:
      return {"float", "[](float x) { return x; }"};
  }
}

class Printer {
 public:
  explicit Printer(std::span<const ScoreFunctions::Tensor> tensors) : tensors_(tensors) {}

  std::string body(const score::Bytecode& code) {
    for (std::size_t i = 0; i < code.pairs.size(); ++i) {
      const Instruction& one = code.pairs[i];
      if (one.op == Op::score && !one.expands) continue;
      text_ += fmt::format("      const auto v{} = {};\n", i, value(one));
      variables_[one.to] = fmt::format("v{}", i);
    }
    for (const Operand& result : code.results) {
      if (result.rank == Rank::pair && variables_.contains(result.index))
        text_ +=
            fmt::format("      Op::write({}, {});\n", address(result), variables_.at(result.index));
    }
    return text_;
  }

 private:
  // A register's elements from those of the lanes on.
  static std::string address(const Operand& of) {
    if (of.scores) return fmt::format("scores + row * {} + i", kBlockM);
    const auto rank = static_cast<int>(of.rank);
    const auto first = of.index * kRankElements[rank];
    switch (of.rank) {
      case Rank::query:
        return fmt::format("of_query + {} + i", first);
      case Rank::distance:
        return fmt::format("of_distance + {} - row + i", first);
      case Rank::key:
        return fmt::format("of_key + {} + row", first);
      case Rank::tile:
        return fmt::format("of_tile + {}", first);
      default:
        return fmt::format("of_pair + {} + row * {} + i", first, kBlockM);
    }
  }
  std::string argument(const Operand& of, bool real) const {
    if (of.rank == Rank::pair && !of.scores && variables_.contains(of.index))
      return variables_.at(of.index);
    const bool one_element = of.rank == Rank::key || of.rank == Rank::tile;
    return fmt::format("Op::{}{}({})", one_element ? "repeat" : "read", real ? "" : "_int",
                       address(of));
  }
  std::string value(const Instruction& one) const {
    if (one.expands) return argument(one.args[0], one.type == score::Type::real);
    if (one.op == Op::load) return load(one);
    std::string text = fmt::format("Op::{}(", score::to_string(one.op));
    for (int a = 0; a < one.arguments; ++a)
      text += fmt::format("{}{}", a == 0 ? "" : ", ", argument(one.args[a], takes_reals(one, a)));
    return text + ")";
  }
  std::string load(const Instruction& one) const {
    const Stored from = stored(tensors_[one.tensor].dtype);
    std::string indices;
    for (int a = 0; a < one.arguments; ++a)
      indices += fmt::format("{}{}", a == 0 ? "" : ", ", argument(one.args[a], false));
    return fmt::format("Op::load<Op::{}, {}, {}>(call.tensors[{}], {{{}}}, {})",
                       one.type == score::Type::real ? "Real" : "Int", from.type, one.arguments,
                       one.tensor, indices, from.convert);
  }

  std::span<const ScoreFunctions::Tensor> tensors_;
  std::map<int32_t, std::string> variables_;  // of registers of pairs, as they are at this place
  std::string text_;
};

}  // namespace

std::string pairs_source(const score::Bytecode& code,
                         std::span<const ScoreFunctions::Tensor> tensors, const char* numbers) {
  std::string text;
  for (int i = 0; i < kEmbeddedHeaderCount; ++i) {
    const std::string_view name = kEmbeddedHeaders[i].name, header = kEmbeddedHeaders[i].text;
    // Only this set's arithmetic is taken: another's instructions would not compile.
    if (name.starts_with("isa/") && header.find(fmt::format("struct {} ", numbers)) == header.npos)
      continue;
    text += without_includes(header);
  }
  const auto rank = [](Rank of) { return static_cast<int>(of); };
  text += fmt::format(
      R"(namespace fulmen::cpu {{
using Op = PairOperations<{}>;
extern "C" __attribute__((visibility("default"))) void {}(const PairsCall& call) {{
  const float* const scores = call.scores;
  [[maybe_unused]] const float* const of_tile = call.registers[{}];
  [[maybe_unused]] const float* const of_query = call.registers[{}];
  [[maybe_unused]] const float* const of_key = call.registers[{}] + call.key;
  [[maybe_unused]] const float* const of_distance =
      call.registers[{}] + (call.last_key - call.key);
  float* const of_pair = call.registers[{}];
  for (int row = 0; row < {}; ++row) {{
    for (int i = 0; i < {}; i += Op::kLanes) {{
)",
      numbers, kPairsSymbol, rank(Rank::tile), rank(Rank::query), rank(Rank::key),
      rank(Rank::distance), rank(Rank::pair), kFunctionKeys, kBlockM);
  return text + Printer(tensors).body(code) + "    }\n  }\n}\n}  // namespace fulmen::cpu\n";
}

}  // namespace fulmen::cpu
