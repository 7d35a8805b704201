#include "tools/files/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "fulmen/printable.h"
#include "runtime/platform/files.h"

namespace fulmen::tools {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxRank = 32;  // NumPy's own limit

Status malformed(std::string why) {
  return {StatusCode::invalid_argument, "malformed .npy header: " + std::move(why)};
}

// Just enough of Python's literal syntax for the dictionary that NumPy writes.
class DictReader {
 public:
  explicit DictReader(std::string_view text) : text_(text) {}

  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool accept(std::string_view word) {
    skip_space();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::optional<std::string_view> string() {
    const char quote = accept('\'') ? '\'' : accept('"') ? '"' : '\0';
    if (quote == '\0') return std::nullopt;
    const std::size_t end = text_.find(quote);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view value = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return value;
  }
  std::optional<int64_t> integer() {
    skip_space();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    accept('L');  // Python 2 wrote long integers so
    return value;
  }
  bool at_end() {
    skip_space();
    return text_.empty();
  }

 private:
  void skip_space() {
    while (!text_.empty() &&
           (text_.front() == ' ' || text_.front() == '\t' || text_.front() == '\n'))
      text_.remove_prefix(1);
  }
  std::string_view text_;
};

std::optional<std::vector<int64_t>> read_shape(DictReader& reader) {
  std::vector<int64_t> shape;
  if (!reader.accept('(')) return std::nullopt;
  while (!reader.accept(')')) {
    const auto dim = reader.integer();
    if (!dim || *dim < 0 || shape.size() == kMaxRank) return std::nullopt;
    shape.push_back(*dim);
    if (reader.accept(',')) continue;
    if (!reader.accept(')')) return std::nullopt;
    break;
  }
  return shape;
}

// Returns the bytes of one element, or a sentence on why the type is not accepted.
Result<std::size_t> element_bytes(std::string_view descr) {
  if (descr == "<f4" || descr == "<i4") return std::size_t{4};
  if (descr == "<f2" || descr == "<u2") return std::size_t{2};
  if (descr == "|b1" || descr == "|u1") return std::size_t{1};
  if (descr.size() == 3 && descr.substr(1) == "f8") {
    return Status{StatusCode::invalid_argument,
                  "dtype float64 is not accepted: save it with .astype(numpy.float32)"};
  }
  if (descr.starts_with('>')) {
    return Status{
        StatusCode::invalid_argument,
        fmt::format("dtype '{}' is big-endian: save it as little-endian, with .astype('<{}')",
                    printable(descr), printable(descr.substr(1)))};
  }
  return Status{StatusCode::invalid_argument,
                fmt::format("dtype '{}' is not accepted: use float32, float16, uint16 holding "
                            "bf16, bool or uint8, or int32",
                            printable(descr))};
}

// The text of the dictionary and where the data begin. Versions differ in the width of the length
// field only (3 is UTF-8).
struct DictText {
  std::string_view text;
  std::size_t data_offset;
};
Result<DictText> find_dict(std::span<const std::byte> bytes) {
  const std::string_view file(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!file.starts_with(kMagic) || file.size() < kMagic.size() + 2) {
    return Status{StatusCode::invalid_argument,
                  "not a .npy file: it does not begin with \\x93NUMPY and a version"};
  }
  const int major = static_cast<unsigned char>(file[6]);
  if (major < 1 || major > 3 || file[7] != 0) {
    return Status{StatusCode::invalid_argument,
                  fmt::format(".npy version {}.{} is unknown: 1.0, 2.0 and 3.0 are accepted", major,
                              static_cast<unsigned char>(file[7]))};
  }
  const std::size_t width = major == 1 ? 2 : 4;
  const std::size_t begin = kMagic.size() + 2 + width;
  if (file.size() < begin) return malformed("the file ends inside it");
  std::size_t length = 0;
  for (std::size_t i = 0; i < width; ++i)
    length |= std::size_t{static_cast<unsigned char>(file[8 + i])} << (8 * i);
  if (length > kMaxNpyHeader - begin)
    return malformed(fmt::format("it claims {} bytes, more than {}", length, kMaxNpyHeader));
  if (file.size() - begin < length) return malformed("the file ends inside it");
  return DictText{file.substr(begin, length), begin + length};
}

std::size_t product(std::span<const int64_t> shape) {
  std::size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<std::size_t>(dim);
  return count;
}

struct CloseFile {
  void operator()(std::FILE* file) const noexcept {
    if (file != stdin) std::fclose(file);
  }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

Status in_file(const std::string& path, const std::string& why,
               StatusCode code = StatusCode::invalid_argument) {
  return {code, fmt::format("{}: {}", path == "-" ? "standard input" : printable(path), why)};
}

}  // namespace

std::size_t NpyHeader::element_count() const noexcept { return product(shape); }
std::size_t NpyArray::element_count() const noexcept { return product(shape); }
std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<NpyHeader> parse_npy_header(std::span<const std::byte> bytes) {
  const Result<DictText> dict = find_dict(bytes);
  if (!dict.ok()) return dict.status();

  DictReader reader(dict->text);
  std::optional<std::string_view> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<int64_t>> shape;
  if (!reader.accept('{')) return malformed("it is not a dictionary");
  while (!reader.accept('}')) {
    const auto key = reader.string();
    if (!key || !reader.accept(':')) return malformed("a key and ':' are expected");
    if (*key == "descr") {
      descr = reader.string();
      if (!descr)
        return malformed("'descr' is not a simple type: structured types are not accepted");
    } else if (*key == "fortran_order") {
      fortran = reader.accept("True")    ? std::optional(true)
                : reader.accept("False") ? std::optional(false)
                                         : std::nullopt;
      if (!fortran) return malformed("'fortran_order' is neither True nor False");
    } else if (*key == "shape") {
      shape = read_shape(reader);
      if (!shape) return malformed("'shape' is not a tuple of sizes");
    } else {
      return malformed("it has a key other than descr, fortran_order and shape");
    }
    if (!reader.accept(',')) {
      if (!reader.accept('}')) return malformed("',' or '}' is expected");
      break;
    }
  }
  if (!reader.at_end()) return malformed("text follows the dictionary");
  if (!descr || !fortran || !shape) return malformed("descr, fortran_order or shape is missing");

  const Result<std::size_t> element = element_bytes(*descr);
  if (!element.ok()) return element.status();
  // The product of the sizes without the zeros must fit, so that no later arithmetic overflows.
  std::size_t bytes_total = element.value();
  for (const int64_t dim : *shape) {
    if (dim != 0 &&
        __builtin_mul_overflow(bytes_total, static_cast<std::size_t>(dim), &bytes_total)) {
      return malformed(fmt::format("the size of shape {} overflows", shape_text(*shape)));
    }
  }
  if (bytes_total > static_cast<std::size_t>(INT64_MAX)) {
    return malformed(fmt::format("the size of shape {} overflows", shape_text(*shape)));
  }
  if (*fortran && shape->size() > 1) {
    return Status{StatusCode::invalid_argument,
                  "Fortran order is not accepted: save it with numpy.ascontiguousarray"};
  }
  return NpyHeader{std::string(*descr), std::move(*shape), dict->data_offset, element.value()};
}

Result<NpyArray> read_bytes(const std::string& path) {
  const File file(path == "-" ? platform::input_stream() : platform::open_stream(path));
  if (!file) return in_file(path, std::strerror(errno), StatusCode::unavailable);
  constexpr std::size_t kStep = std::size_t{1} << 20;
  std::vector<std::byte> bytes;
  for (std::size_t had = 0, read = kStep; read == kStep; had += read) {
    bytes.resize(had + kStep);
    read = std::fread(bytes.data() + had, 1, kStep, file.get());
    bytes.resize(had + read);
  }
  if (std::ferror(file.get())) return in_file(path, "it cannot be read", StatusCode::unavailable);
  NpyArray array;
  array.path = printable(path);
  array.dtype = DType::uint8;
  array.shape = {static_cast<int64_t>(bytes.size())};
  array.data = Memory(bytes.size());
  if (!bytes.empty() && array.data.data() == nullptr)
    return in_file(path, "no memory for its data", StatusCode::out_of_memory);
  if (!bytes.empty()) std::memcpy(array.data.data(), bytes.data(), bytes.size());
  return array;
}

Result<NpyArray> read_npy(const std::string& path, bool uint16_is_bf16) {
  const File file(path == "-" ? platform::input_stream() : platform::open_stream(path));
  if (!file) return in_file(path, std::strerror(errno), StatusCode::unavailable);
  std::vector<std::byte> head(kMaxNpyHeader);
  head.resize(std::fread(head.data(), 1, head.size(), file.get()));
  if (std::ferror(file.get())) return in_file(path, std::strerror(errno), StatusCode::unavailable);

  Result<NpyHeader> parsed = parse_npy_header(head);
  if (!parsed.ok()) return in_file(path, parsed.status().message(), parsed.status().code());
  const NpyHeader& header = parsed.value();
  if (header.descr == "<u2" && !uint16_is_bf16) {
    return in_file(
        path, "dtype uint16 is not accepted as numbers: if it holds bf16 bits, say so with --bf16");
  }
  const std::size_t bytes = header.element_count() * header.element_bytes;
  // The length is checked before the allocation, so that a false shape in a short file costs
  // nothing. A pipe's length is known only at its end.
  const auto wrong_length = [&](std::size_t has, const char* more) {
    return in_file(path, fmt::format("shape {} of '{}' needs {} bytes of data, the file has {}{}",
                                     shape_text(header.shape), header.descr, bytes, has, more));
  };
  if (const auto length = platform::stream_bytes(file.get()); length) {
    const std::size_t has = static_cast<std::size_t>(*length) - header.data_offset;
    if (has != bytes) return wrong_length(has, "");
  }
  NpyArray array;
  array.path = printable(path);
  array.dtype = header.descr == "<f4"   ? DType::fp32
                : header.descr == "<f2" ? DType::fp16
                : header.descr == "<u2" ? DType::bf16
                : header.descr == "<i4" ? DType::int32
                                        : DType::boolean;
  array.shape = header.shape;
  array.data = Memory(bytes);
  if (bytes != 0 && array.data.data() == nullptr)
    return in_file(path, "no memory for its data", StatusCode::out_of_memory);
  const std::size_t had = std::min(head.size() - header.data_offset, bytes);
  if (had > 0) std::memcpy(array.data.data(), head.data() + header.data_offset, had);
  const std::size_t read =
      had < bytes
          ? std::fread(static_cast<std::byte*>(array.data.data()) + had, 1, bytes - had, file.get())
          : 0;
  if (std::ferror(file.get())) return in_file(path, "it cannot be read", StatusCode::unavailable);
  if (had + read != bytes) return wrong_length(had + read, "");
  if (head.size() - header.data_offset > bytes || std::fgetc(file.get()) != EOF)
    return wrong_length(bytes, " and more");
  return array;
}

std::string npy_header(DType dtype, std::span<const int64_t> shape) {
  const char* descr = dtype == DType::fp32    ? "<f4"
                      : dtype == DType::fp16  ? "<f2"
                      : dtype == DType::bf16  ? "<u2"
                      : dtype == DType::int32 ? "<i4"
                                              : "|b1";
  std::string dict = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 descr, fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // The data begin at a multiple of 64 bytes, the dictionary ends with a newline: both as NumPy
  // writes them.
  const std::size_t prefix = kMagic.size() + 2 + 2;
  dict.resize((prefix + dict.size() + 1 + 63) / 64 * 64 - prefix - 1, ' ');
  dict += '\n';
  std::string header(kMagic);
  header += '\1';
  header += '\0';
  header += static_cast<char>(dict.size() & 0xFF);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

Status write_npy(OutputFile& file, DType dtype, std::span<const int64_t> shape, const void* data) {
  const std::string header = npy_header(dtype, shape);
  if (Status status = file.write(std::as_bytes(std::span(header))); !status.ok()) return status;
  const std::size_t bytes = product(shape) * static_cast<std::size_t>(size_of(dtype));
  return file.write({static_cast<const std::byte*>(data), bytes});
}

}  // namespace fulmen::tools
