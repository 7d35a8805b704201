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
  // new rows of keys and values. lengths: each sequence's tokens after the run, before: in front of
  // the new rows.
  Cache(Run& run, const Attributes& attributes, std::vector<fulmen_tensor> fresh, int64_t total,
        const std::vector<int64_t>& lengths, const std::vector<int64_t>& before);
  // Writes the new rows; keys are prepared, values only quantized.
  void append(Preparation k, const std::vector<int64_t>& positions);
  // Sets k, v, their scales and lengths of the run's tensors. prompt: rows behind a sequence's end
  // are padding.
  void attend(bool prompt);
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
  std::vector<int64_t> first_;          // row of each sequence that the new ones begin at
  std::vector<int64_t> kept_;           // of a sliding window: rows of the present
  std::vector<int64_t> lengths_;        // of the rows that are attended
  bool staged_ = false;
};

}  // namespace fulmen_ort
