// GroupQueryAttention's keys and values: past and present, in the query's type or quantized.
#pragma once

#include <cstdint>
#include <vector>

#include "node.h"
#include "rows.h"

namespace fulmen_ort {

class Cache {
 public:
  // Checks past, lengths and scales, and brings the past to where new rows are appended. fresh: the
  // new rows of keys and values. before: each sequence's tokens in front of them, lengths: after
  // the run.
  Cache(Run& run, const Attributes& attributes, const std::vector<fulmen_tensor>& fresh,
        int64_t total, const std::vector<int64_t>& before, const std::vector<int64_t>& lengths);
  // Writes the new rows; keys are prepared, values only quantized.
  void append(Preparation k, const std::vector<int64_t>& positions);
  // Sets k, v, their scales and lengths of the run's tensors. Rows behind a sequence's end are
  // attended by padding alone.
  void attend();
  // attention_bias [batch or 1, heads or 1, queries, positions] with a column for each row that is
  // attended: the same where they begin at position 0 and there are enough, else in memory.
  fulmen_tensor columns_of(const fulmen_tensor& bias);
  // A sliding window's rows that did not fit become the present's.
  void write_back();

 private:
  // Keys or values.
  struct Side {
    Value past, present;
    fulmen_tensor fresh, rows;  // rows: where they are attended, [batch, any, heads, stored bytes]
    Quantized quantized;
    std::vector<float> scales;
  };
  void open(Side& side, std::size_t which, int64_t room, bool staged);
  fulmen_tensor attended(Side& side);

  Run& run_;
  const Attributes& attributes_;
  Side sides_[2];
  int64_t past_rows_ = 0, stored_ = 0;  // stored_: elements of a row in memory
  std::vector<int64_t> lengths_;        // tokens after the run
  // A sequence has one of each: the row that the new ones begin at, its position, the rows that are
  // attended, and those that a sliding window's present has.
  std::vector<int64_t> first_, before_, attended_, kept_;
  bool staged_ = false;
};

}  // namespace fulmen_ort
