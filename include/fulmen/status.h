// Status and Result: how every Fulmen call reports success or failure. No exception crosses the
// library's edge. Both are true in a condition where the call succeeded: `if (const Status
// status = attention(...); !status) ...`.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "fulmen/export.h"

namespace fulmen {

enum class StatusCode : int {
  ok = 0,
  invalid_argument = 1,     // an argument is malformed; the message names it, its value and what is
                            // accepted
  unsupported = 2,          // valid, but the named kernel or device cannot do it; the message says
                            // why
  unavailable = 3,          // a device, library or file is not there
  out_of_memory = 4,        // an allocation failed
  verification_failed = 5,  // the result broke the tolerance rule, or a kernel's machine code a
                            // rule; the message names it
  internal = 6,             // a defect in Fulmen
};

// Short lower-case name of a code, e.g. "invalid argument".
FULMEN_API const char* to_string(StatusCode code) noexcept;

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const noexcept { return code_ == StatusCode::ok; }
  explicit operator bool() const noexcept { return ok(); }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

// Prints the status's code and message on stderr and ends the process by abort(): what a Result
// does whose value is taken where there is none.
[[noreturn]] FULMEN_API void abort_without_value(const Status& status) noexcept;

// A value, or the Status that says why there is none. Ask ok() before value(), * or ->: on an error
// these print its message on stderr and abort, in every build. A Result that is moved from gives
// its value, not a reference into itself: `for (auto& x : list().value())` iterates over a list
// that lives as long as the loop.
template <class T>
class [[nodiscard]] Result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): reads as `return value;`
  Result(T value) : value_(std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): reads as `return Status{...};`
  Result(Status status) : status_(std::move(status)) {}
  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }
  T& value() & { return there(), *value_; }
  const T& value() const& { return there(), *value_; }
  T value() && { return there(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void there() const noexcept {
    if (!value_.has_value()) abort_without_value(status_);
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace fulmen
