#include "tools/tune/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <set>

#include "fulmen/printable.h"
#include "tools/options/problem_arguments.h"

namespace fulmen::tools {
namespace {

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

bool read_number(std::string_view text, int64_t low, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= low &&
         number <= kMostNumber;
}

// Reads "7,9" or "7/9". A single number counts for both.
bool read_pair(std::string_view text, char between, int64_t low, int64_t& first, int64_t& second) {
  const std::size_t at = text.find(between);
  if (!read_number(text.substr(0, at), low, first)) return false;
  second = first;
  return at == std::string_view::npos || read_number(text.substr(at + 1), low, second);
}

// A problem as to_string(Problem) writes it.
class Reader {
 public:
  explicit Reader(std::string_view text) : words_(words_of(text)) {}

  // "" and a problem, or what is wrong with the line, or what tuning does not make.
  std::string read(TuneProblem& problem) {
    BenchCase& c = problem.bench_case;
    std::size_t n = 0;
    if (n < words_.size() && words_[n] == "backward") {
      problem.pass = Pass::backward;
      ++n;
    }
    const Result<DType> dtype = parse_dtype(std::string(n < words_.size() ? words_[n] : ""));
    if (!dtype.ok()) return "a dtype is expected before b=";
    c.dtype = dtype.value();
    for (++n; n < words_.size(); ++n) {
      const std::string_view word = words_[n], name = word.substr(0, word.find('='));
      const std::string_view value = name.size() < word.size() ? word.substr(name.size() + 1) : "";
      if (name == "strides") {
        while (n + 1 < words_.size() && words_[n].back() != ']') ++n;
        continue;
      }
      if (word == "of") {  // how many pages there are
        ++n;
        continue;
      }
      if (std::string why = take(name, value, problem); !why.empty()) return why;
    }
    if (seen_.size() < 5) return "one of b, sq, sk, h and d is not there";
    return finish(problem);
  }

 private:
  std::string take(std::string_view name, std::string_view value, TuneProblem& problem) {
    BenchCase& c = problem.bench_case;
    const auto unreadable = [&] {
      return fmt::format("{} is \"{}\"", name, printable(std::string(value)));
    };
    const std::map<std::string_view, int64_t*> sizes{
        {"b", &c.batch}, {"sq", &c.seqlen_q}, {"sk", &c.seqlen_k}};
    if (const auto size = sizes.find(name); size != sizes.end()) {
      seen_.insert(name);
      return read_number(value, 1, *size->second)
                 ? ""
                 : unreadable() + ": a number from 1 on is expected";
    }
    if (name == "h") {
      seen_.insert(name);
      return read_pair(value, '/', 1, c.heads, c.kv_heads) && c.heads % c.kv_heads == 0
                 ? ""
                 : unreadable() +
                       ": heads and the KV heads that divide them are expected, such as 32/8";
    }
    if (name == "d") {
      seen_.insert(name);
      int64_t values = 0;
      if (!read_pair(value, '/', 1, c.head_dim, values))
        return unreadable() + ": a head_dim is expected";
      return values == c.head_dim ? "" : "its head_dim_v is another one than its head_dim";
    }
    if (name == "window") {
      if (!read_pair(value, ',', -1, left_, right_))
        return unreadable() + ": two numbers from -1 on are expected";
      return "";
    }
    if (name == "diagonal")
      return read_number(value, -kMostNumber, diagonal_) ? ""
                                                         : unreadable() + ": a number is expected";
    if (name == "pages") {
      int64_t pages = 0;
      return read_pair(value, 'x', 1, pages, c.page_size)
                 ? ""
                 : unreadable() + ": pages and their rows are expected";
    }
    if (name == "bias" || name == "dbias") {
      c.bias = true;
      return value == to_string(c.dtype) ? "" : fmt::format("its {} has another dtype", name);
    }
    const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (is_one_of({"dq", "dk", "dv"})) gradients_.insert(name);
    if (name == "seqlens_k") lengths_ = true;
    if (name == "top_left") top_left_ = true;
    if (is_one_of(
            {"scale", "lse", "gives", "dq", "dk", "dv", "bottom_right", "top_left", "seqlens_k"}))
      return "";
    if (is_one_of({"softcap", "keep_mask", "alibi", "sinks", "dsinks", "dropout", "packed_q",
                   "packed_k", "padded_k", "leftpad_k", "nondeterministic", "dlse"})) {
      return fmt::format("it has {}, which tuning does not make", name);
    }
    return fmt::format("{} is not known", printable(std::string(name)));
  }

  std::string finish(TuneProblem& problem) const {
    BenchCase& c = problem.bench_case;
    if (left_ >= 0 || right_ > 0) return fmt::format("it has a window of {},{}", left_, right_);
    c.causal = right_ == 0;
    if (c.causal && (top_left_ || (c.page_size == 0 && diagonal_ != c.seqlen_k - c.seqlen_q)))
      return "its causal mask is top-left";
    if (lengths_ && c.page_size == 0) return "it has seqlens_k";
    const bool backward = problem.pass == Pass::backward;
    if (backward && gradients_.size() != 3) return "it is without one of dq, dk and dv";
    if (backward && c.page_size > 0) return "it has pages";
    c.training = backward;
    c.suite = backward          ? "training"
              : c.page_size > 0 ? "paged"
              : c.seqlen_q == 1 ? "decode"
                                : "prefill";
    c.name = tune_problem_name(c, problem.pass);
    return "";
  }

  std::vector<std::string_view> words_;
  std::set<std::string_view> seen_, gradients_;
  int64_t left_ = -1, right_ = -1, diagonal_ = 0;
  bool lengths_ = false, top_left_ = false;
};

// The problem in a plan's line: what is before " b=" by a dtype and perhaps "backward", up to ": ".
// Empty: the line names none.
std::string_view problem_in(std::string_view line) {
  const std::size_t sizes = line.find(" b=");
  if (sizes == std::string_view::npos || line.find(" sq=", sizes) == std::string_view::npos)
    return {};
  std::size_t begin = line.rfind(' ', sizes - (sizes > 0 ? 1 : 0));
  begin = begin == std::string_view::npos || begin >= sizes ? 0 : begin + 1;
  constexpr std::string_view kBackward = "backward ";
  if (begin >= kBackward.size() &&
      line.substr(begin - kBackward.size(), kBackward.size()) == kBackward)
    begin -= kBackward.size();
  return line.substr(begin, line.find(": ", sizes) - begin);
}

}  // namespace

Result<LogProblems> problems_of_log(std::string_view text, const std::string& path) {
  LogProblems found;
  std::set<std::string> names, reasons;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    const std::string_view words = problem_in(line);
    if (words.empty()) continue;
    TuneProblem problem;
    const std::string why = Reader(words).read(problem);
    if (why.empty()) {
      if (names.insert(problem.bench_case.name).second)
        found.problems.push_back(std::move(problem));
    } else if (reasons.insert(why).second) {
      found.left_out.push_back(fmt::format("line {}: left out: {}", number, why));
    }
  }
  if (!found.problems.empty()) return found;
  std::string message =
      fmt::format("--from-log {}: no problem of it can be tuned", printable(path));
  for (const std::string& one : found.left_out) message += "; " + one;
  if (found.left_out.empty())
    message += ": a line a plan is expected, which programs print under FLASH_ATTENTION_DEBUG=1";
  return Status(StatusCode::invalid_argument, message);
}

}  // namespace fulmen::tools
