// While this lives, code may be loaded while this thread or another captures a stream. So a call
// whose kernel is new can be captured, too.
#pragma once

namespace fulmen::gpu {

class RelaxedCapture {
 public:
  // cuThreadExchangeStreamCaptureMode or hipThreadExchangeStreamCaptureMode: gives the mode of
  // before. Null where there is none.
  explicit RelaxedCapture(int (*exchange)(int* mode)) : exchange_(exchange) { exchange_modes(); }
  ~RelaxedCapture() { exchange_modes(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  // CUstreamCaptureMode and hipStreamCaptureMode have the same numbers.
  static constexpr int kRelaxed = 2;

  void exchange_modes() {
    if (exchange_ != nullptr) exchange_(&mode_);
  }
  int (*exchange_)(int* mode);
  int mode_ = kRelaxed;
};

}  // namespace fulmen::gpu
