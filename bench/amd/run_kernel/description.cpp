#include "bench/amd/run_kernel/description.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "fulmen/printable.h"
#include "tools/files/output_file.h"

namespace fulmen::run_kernel {
namespace {

using nlohmann::json;

// Thrown with the sentence; read_description() returns it.
struct Refusal {
  std::string why;
};
[[noreturn]] void refuse(std::string why) { throw Refusal{std::move(why)}; }

// A JSON object whose members are all known.
class Object {
 public:
  Object(const json& value, std::string where, std::initializer_list<std::string_view> known)
      : value_(value), where_(std::move(where)) {
    if (!value.is_object()) refuse(fmt::format("{} is no object", where_));
    for (const auto& [key, member] : value.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse(fmt::format("{} has a member \"{}\": {} are accepted", where_, printable(key),
                           fmt::join(known, ", ")));
    }
  }
  bool has(const char* key) const { return value_.contains(key); }
  const json& array(const char* key) const {
    const json& value = at(key);
    if (!value.is_array()) refuse(fmt::format("{} is no array", name(key)));
    return value;
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(fmt::format("{} is no text", name(key)));
    return at(key).get<std::string>();
  }
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    return to_integer(at(key), name(key), least, most);
  }
  double number(const char* key) const {
    if (!at(key).is_number()) refuse(fmt::format("{} is no number", name(key)));
    return at(key).get<double>();
  }
  std::vector<int64_t> integers(const char* key, int64_t least, int64_t most) const {
    std::vector<int64_t> list;
    for (const json& one : array(key)) list.push_back(to_integer(one, name(key), least, most));
    return list;
  }
  const json& at(const char* key) const {
    if (!has(key)) refuse(fmt::format("{} has no \"{}\"", where_, key));
    return value_.at(key);
  }
  std::string name(const char* key) const { return fmt::format("{}.{}", where_, key); }

 private:
  static int64_t to_integer(const json& value, const std::string& name, int64_t least,
                            int64_t most) {
    if (!value.is_number_integer()) refuse(fmt::format("{} is no integer", name));
    const bool fits = !value.is_number_unsigned() ||
                      value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most)
      refuse(fmt::format("{} is {}: {} to {} are accepted", name, value.dump(), least, most));
    return value.get<int64_t>();
  }

  const json& value_;
  std::string where_;
};

constexpr int64_t kMostBytes = int64_t{1} << 34;

DType dtype_of(const std::string& text, const std::string& where) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16, DType::boolean, DType::int32}) {
    if (text == to_string(dtype)) return dtype;
  }
  refuse(fmt::format("{} is \"{}\": fp32, fp16, bf16, bool and int32 are accepted", where,
                     printable(text)));
}

class Reader {
 public:
  explicit Reader(const std::string& path) : folder_(std::filesystem::path(path).parent_path()) {}

  Description description(const json& value) const {
    const Object o(value, "the description", {"arch", "problem", "buffers", "launches"});
    Description d{.arch = o.text("arch"), .whole = {}, .buffers = {}, .launches = {}};
    if (o.has("problem")) d.whole = whole(o.at("problem"));
    if (!o.at("buffers").is_object()) refuse("the description.buffers is no object");
    for (const auto& [name, one] : o.at("buffers").items()) d.buffers.push_back(buffer(name, one));
    for (const json& one : o.array("launches"))
      d.launches.push_back(launch(one, fmt::format("launches[{}]", d.launches.size())));
    for (const KernelLaunch& l : d.launches) check_buffers(l, d.buffers);
    return d;
  }

 private:
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  static Whole whole(const json& value) {
    const Object o(value, "the description.problem", {"dtype", "memory_bytes", "flops"});
    return {.dtype = dtype_of(o.text("dtype"), o.name("dtype")),
            .memory_bytes = o.number("memory_bytes"),
            .flops = o.number("flops")};
  }

  Buffer buffer(const std::string& name, const json& value) const {
    const Object o(value, fmt::format("buffers.{}", printable(name)),
                   {"npy", "bytes", "fill", "save", "dtype", "shape"});
    Buffer b{.name = name, .npy = {}, .save = {}, .shape = {}};
    if (o.has("npy") == o.has("bytes"))
      refuse(fmt::format("buffers.{} needs one of \"npy\" and \"bytes\"", printable(name)));
    if (o.has("npy")) b.npy = file(o.text("npy"));
    if (o.has("bytes")) b.bytes = static_cast<std::size_t>(o.integer("bytes", 1, kMostBytes));
    if (o.has("fill")) b.fill = static_cast<uint8_t>(o.integer("fill", 0, 255));
    if (!o.has("save")) return b;
    b.save = file(o.text("save"));
    b.dtype = dtype_of(o.text("dtype"), o.name("dtype"));
    b.shape = o.integers("shape", 1, kMostBytes);
    return b;
  }

  KernelLaunch launch(const json& value, const std::string& where) const {
    const Object o(value, where,
                   {"code", "kernel", "grid", "workgroup_size", "dynamic_lds", "workgroups",
                    "times", "arguments"});
    KernelLaunch l;
    l.code = file(o.text("code"));
    if (o.has("kernel")) l.kernel = o.text("kernel");
    l.grid.workgroups = sizes(o, "grid", std::numeric_limits<int32_t>::max());
    // So the hardware has it, and so the product fits.
    constexpr uint32_t kMostAbove = 65535;
    if (std::max(l.grid.workgroups[1], l.grid.workgroups[2]) > kMostAbove)
      refuse(fmt::format("{} has more than {} workgroups in its second or third dimension",
                         o.name("grid"), kMostAbove));
    l.grid.workgroup_size = sizes(o, "workgroup_size", 1024);
    if (l.grid.lanes() > 1024)
      refuse(fmt::format("{} has {} lanes: up to 1024 are accepted", o.name("workgroup_size"),
                         l.grid.lanes()));
    if (o.has("dynamic_lds"))
      l.dynamic_lds_bytes = static_cast<int>(o.integer("dynamic_lds", 0, 1 << 20));
    if (o.has("workgroups")) l.workgroups = o.integers("workgroups", 0, l.grid.count() - 1);
    if (o.has("times")) l.times = o.number("times");
    for (const json& one : o.array("arguments"))
      l.arguments.push_back(
          argument(one, fmt::format("{}.arguments[{}]", where, l.arguments.size())));
    return l;
  }

  static std::array<uint32_t, 3> sizes(const Object& o, const char* key, int64_t most) {
    const std::vector<int64_t> list = o.integers(key, 1, most);
    if (list.empty() || list.size() > 3)
      refuse(fmt::format("{} has {} sizes: one to three are accepted", o.name(key), list.size()));
    std::array<uint32_t, 3> all{1, 1, 1};
    std::transform(list.begin(), list.end(), all.begin(),
                   [](int64_t n) { return static_cast<uint32_t>(n); });
    return all;
  }

  static Argument argument(const json& value, const std::string& where) {
    const Object o(value, where, {"buffer", "plus", "i32", "i64", "f32", "offset"});
    Argument a;
    if (o.has("offset")) a.offset = o.integer("offset", 0, 1 << 20);
    int kinds = 0;
    if (o.has("buffer")) {
      ++kinds;
      a.buffer = o.text("buffer");
      if (a.buffer.empty()) refuse(fmt::format("{} is empty", o.name("buffer")));
      a.value.resize(sizeof(uint64_t));
    }
    if (o.has("plus")) a.plus = o.integer("plus", 0, kMostBytes);
    const auto set = [&](auto number) {
      ++kinds;
      a.value.resize(sizeof number);
      std::memcpy(a.value.data(), &number, sizeof number);
    };
    if (o.has("i32")) {
      set(static_cast<int32_t>(o.integer("i32", std::numeric_limits<int32_t>::min(),
                                         std::numeric_limits<int32_t>::max())));
    }
    if (o.has("i64")) {
      set(o.integer("i64", std::numeric_limits<int64_t>::min(),
                    std::numeric_limits<int64_t>::max()));
    }
    if (o.has("f32")) set(static_cast<float>(o.number("f32")));
    if (kinds != 1) refuse(fmt::format("{} needs one of buffer, i32, i64 and f32", where));
    if (o.has("plus") && a.buffer.empty())
      refuse(fmt::format("{} is of a buffer alone", o.name("plus")));
    return a;
  }

  static void check_buffers(const KernelLaunch& l, const std::vector<Buffer>& buffers) {
    for (const Argument& a : l.arguments) {
      const bool known =
          a.buffer.empty() || std::any_of(buffers.begin(), buffers.end(),
                                          [&](const Buffer& b) { return b.name == a.buffer; });
      if (!known) refuse(fmt::format("there is no buffer \"{}\"", printable(a.buffer)));
    }
  }

  std::filesystem::path folder_;
};

}  // namespace

Result<Description> read_description(const std::string& path) {
  const Result<std::string> text = tools::read_text_file("the description", path);
  if (!text.ok()) return text.status();
  const auto refused = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: {}", printable(path), why));
  };
  const json value = json::parse(text.value(), nullptr, false);
  if (value.is_discarded()) return refused("it is no JSON");
  try {
    return Reader(path).description(value);
  } catch (const Refusal& refusal) {
    return refused(refusal.why);
  }
}

}  // namespace fulmen::run_kernel
