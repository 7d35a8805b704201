#include "emulator/source/mbarriers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/core/arguments.h"

namespace fulmen::gpu::emulated {
namespace {

constexpr int kNever = -2;  // not -1: a first wait is often for the phase before the first

}  // namespace

Status encode_tensor_map(const TensorMapShape& s, kernels::TensorMap& map) {
  constexpr int kAlignment = 16, kMostBoxRows = 256;
  constexpr int64_t kMostExtent = int64_t{1} << 32U, kMostStride = int64_t{1} << 40U;
  const auto invalid = [](std::string message) {
    return Status(StatusCode::invalid_argument, "tensor map: " + std::move(message));
  };
  if (reinterpret_cast<std::uintptr_t>(s.data) % kAlignment != 0)
    return invalid(fmt::format("data is {}, no multiple of 16", s.data));
  for (const int64_t extent : s.extent) {
    if (extent < 1 || extent > kMostExtent)
      return invalid(fmt::format("an extent is {}: 1 to 2^32 is accepted", extent));
  }
  for (const int64_t stride : s.stride) {
    if (stride <= 0 || stride >= kMostStride || stride % kAlignment != 0) {
      return invalid(fmt::format(
          "a stride is {} bytes: multiples of 16 from 16 to 2^40 are accepted", stride));
    }
  }
  if (s.box_rows < 1 || s.box_rows > kMostBoxRows)
    return invalid(fmt::format("a box has {} rows: 1 to 256 are accepted", s.box_rows));
  if (s.box_heads < 1 || s.box_heads > kMostBoxRows)
    return invalid(fmt::format("a box has {} heads: 1 to 256 are accepted", s.box_heads));
  EmulatedTensorMap own{static_cast<const std::byte*>(s.data), {}, {}, s.box_rows, s.box_heads};
  std::copy(std::begin(s.extent), std::end(s.extent), own.extent);
  std::copy(std::begin(s.stride), std::end(s.stride), own.stride);
  static_assert(sizeof(own) <= sizeof(map.bytes));
  std::memcpy(map.bytes, &own, sizeof(own));
  return {};
}

void Mbarriers::reset(int waves) {
  barriers_.clear();
  waves_ = waves;
}

Mbarriers::Barrier* Mbarriers::find(int at) {
  const auto found = barriers_.find(at);
  return found == barriers_.end() ? nullptr : &found->second;
}

std::string Mbarriers::init(int at, int arrivals, Site site) {
  constexpr int kBytes = 8;
  if (at % kBytes != 0 || arrivals < 1) {
    return fmt::format(
        "mbarrier_init at {}: place {} and {} arrivals, a multiple of {} and at least one are "
        "needed",
        to_string(site), at, arrivals, kBytes);
  }
  Barrier barrier;
  barrier.arrivals = barrier.left = arrivals;
  barrier.arrived.assign(static_cast<std::size_t>(waves_), 0);
  barrier.ended.assign(static_cast<std::size_t>(waves_), 0);
  barrier.waited.assign(static_cast<std::size_t>(waves_), kNever);
  if (!barriers_.emplace(at, std::move(barrier)).second) {
    return fmt::format("mbarrier_init at {}: the barrier at {} has been initialised before",
                       to_string(site), at);
  }
  return {};
}

std::string Mbarriers::arrive(int at, int expected, int thread, int wave, Lds& lds, Site site) {
  Barrier* const barrier = find(at);
  if (barrier == nullptr)
    return fmt::format("mbarrier_arrive at {}: no barrier at {} was initialised", to_string(site),
                       at);
  if (barrier->left == 0) {
    return fmt::format(
        "mbarrier_arrive at {}: lane {} arrives once more in a phase of {} arrivals, whose bytes "
        "are in flight",
        to_string(site), thread, barrier->arrivals);
  }
  barrier->bytes += expected;
  // The wave passes on what it knows of other waves.
  for (int from = 0; from < waves_; ++from) {
    int& time = barrier->arrived[static_cast<std::size_t>(from)];
    time = std::max(time, lds.known(from, wave));
  }
  barrier->arrived[static_cast<std::size_t>(wave)] = lds.named_barrier_arrive();
  --barrier->left;
  return {};
}

std::string Mbarriers::load(int at, const TmaCopy& copy, Lds& lds) {
  Barrier* const barrier = find(at);
  if (barrier == nullptr)
    return fmt::format("tma_load at {}: no barrier at {} was initialised", to_string(copy.site),
                       at);
  if (copy.to % TmaCopy::kAlignment != 0) {
    return fmt::format("tma_load at {}: to {}, no multiple of {}", to_string(copy.site), copy.to,
                       TmaCopy::kAlignment);
  }
  for (int n = 0; n < copy.bytes(); n += TmaCopy::kPieceBytes) {
    std::string wrong = lds.begin_copy(copy.to + n, TmaCopy::kPieceBytes, copy.thread, copy.site);
    if (!wrong.empty()) return wrong;
  }
  barrier->copies.push_back(copy);
  return {};
}

// The source in LDS is read when the copy is issued, and compared when it arrives.
std::string Mbarriers::copy(int at, ClusterCopy copy, Lds& lds) {
  constexpr int kPiece = TmaCopy::kPieceBytes;
  Barrier* const barrier = find(at);
  if (barrier == nullptr)
    return fmt::format("cluster_copy at {}: no barrier at {} was initialised", to_string(copy.site),
                       at);
  if (copy.bytes <= 0 || copy.bytes % kPiece != 0 || copy.to % kPiece != 0 ||
      copy.from % kPiece != 0) {
    return fmt::format("cluster_copy at {}: {} bytes from {} to {}: multiples of {} are accepted",
                       to_string(copy.site), copy.bytes, copy.from, copy.to, kPiece);
  }
  copy.content.resize(static_cast<std::size_t>(copy.bytes));
  for (int n = 0; n < copy.bytes; n += kPiece) {
    std::string wrong = lds.read_by_matrix_unit(copy.from + n, copy.content.data() + n, kPiece,
                                                copy.thread, copy.site);
    if (wrong.empty()) wrong = lds.begin_copy(copy.to + n, kPiece, copy.thread, copy.site);
    if (!wrong.empty()) return wrong;
  }
  barrier->cluster_copies.push_back(std::move(copy));
  return {};
}

std::string Mbarriers::deliver(const ClusterCopy& copy, Lds& lds) {
  constexpr int kPiece = TmaCopy::kPieceBytes;
  if (!lds.holds(copy.from, copy.content)) {
    return fmt::format(
        "LDS that the cluster_copy of lane {} at {} sends was overwritten before it arrived",
        copy.thread, to_string(copy.site));
  }
  for (int n = 0; n < copy.bytes; n += kPiece) {
    std::string wrong = lds.arrive_asynchronously(copy.to + n, copy.content.data() + n, kPiece,
                                                  copy.thread, copy.site);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

int Mbarriers::Barrier::arriving() const {
  int bytes = 0;
  for (const TmaCopy& copy : copies) bytes += copy.bytes();
  for (const ClusterCopy& copy : cluster_copies) bytes += copy.bytes;
  return bytes;
}

EmulatedTensorMap::Piece EmulatedTensorMap::piece(int64_t column, int64_t row, int64_t head,
                                                  int64_t batch) const {
  constexpr int64_t kElementBytes = 2;
  const bool there = row >= 0 && row < extent[1] && head < extent[2] && batch < extent[3];
  const auto columns =
      there ? std::clamp<int64_t>(extent[0] - column, 0, TmaCopy::kPieceColumns) : 0;
  if (columns == 0) return {};
  return {data + row * stride[0] + head * stride[1] + batch * stride[2] + column * kElementBytes,
          static_cast<std::size_t>(columns * kElementBytes)};
}

std::string Mbarriers::deliver(const TmaCopy& copy, Lds& lds, const MemoryCheck& accessible) {
  const int rows = copy.map.box_rows;
  for (int n = 0; n < rows * copy.map.box_heads; ++n) {
    for (int p = 0; p < TmaCopy::kPieces; ++p) {
      std::byte piece[TmaCopy::kPieceBytes]{};
      const auto [from, bytes] =
          copy.map.piece(copy.column + TmaCopy::kPieceColumns * p, copy.row + n % rows,
                         copy.head + n / rows, copy.batch);
      if (bytes > 0) {
        if (!accessible(from, bytes)) {
          return fmt::format(
              "global memory out of bounds: the tma_load of lane {} at {} reads {} bytes of {}, "
              "outside every allocation",
              copy.thread, to_string(copy.site), bytes, static_cast<const void*>(from));
        }
        std::memcpy(piece, from, bytes);
      }
      const int place = copy.to + TmaCopy::place(n, p);
      if (std::string wrong =
              lds.arrive_asynchronously(place, piece, sizeof(piece), copy.thread, copy.site);
          !wrong.empty()) {
        return wrong;
      }
    }
  }
  return {};
}

bool Mbarriers::try_wait(int at, int parity, int wave, Lds& lds, const MemoryCheck& accessible,
                         std::string& error) {
  Barrier* const barrier = find(at);
  if (barrier == nullptr) {
    error = fmt::format("mbarrier_wait: no barrier at {} was initialised", at);
    return false;
  }
  const int arriving = barrier->arriving();
  if (barrier->left == 0 && arriving > barrier->bytes) {
    error = fmt::format("the mbarrier at {} expects {} bytes and {} arrive", at, barrier->bytes,
                        arriving);
    return false;
  }
  if (barrier->left == 0 && arriving == barrier->bytes) {
    // The copies count as accesses of the wave that issued them.
    const auto hand_over = [&](int thread) {
      barrier->arrived[static_cast<std::size_t>(thread / lds.wave_size())] =
          lds.named_barrier_arrive();
    };
    for (const TmaCopy& copy : barrier->copies) {
      if (error.empty()) error = deliver(copy, lds, accessible);
      hand_over(copy.thread);
    }
    for (const ClusterCopy& copy : barrier->cluster_copies) {
      if (error.empty()) error = deliver(copy, lds);
      hand_over(copy.thread);
    }
    if (!error.empty()) return false;
    barrier->copies.clear();
    barrier->cluster_copies.clear();
    barrier->bytes = 0;
    barrier->left = barrier->arrivals;
    barrier->ended = barrier->arrived;
    ++barrier->phase;
  }
  if (barrier->phase % 2 == parity) return false;
  int& waited = barrier->waited[static_cast<std::size_t>(wave)];
  if (waited == barrier->phase - 1) {
    error = fmt::format(
        "a phase waited for twice: wave {} waits for phase {} of the mbarrier at {} once more",
        wave, waited, at);
    return false;
  }
  waited = barrier->phase - 1;
  for (int from = 0; from < waves_; ++from)
    lds.follow(from, wave, barrier->ended[static_cast<std::size_t>(from)]);
  return true;
}

std::string Mbarriers::missing(int at) const {
  const auto found = barriers_.find(at);
  if (found == barriers_.end()) return "which was not initialised";
  const Barrier& barrier = found->second;
  if (barrier.left == 0)
    return fmt::format("which expects {} bytes and {} arrive", barrier.bytes, barrier.arriving());
  return fmt::format("of whose {} arrivals {} are missing", barrier.arrivals, barrier.left);
}

std::string Mbarriers::end() const {
  for (const auto& [at, barrier] : barriers_) {
    const auto in_flight = [](const char* operation, const auto& copy) {
      return fmt::format(
          "lane {}'s {} at {} is in flight when the workgroup ends: nobody waited for it",
          copy.thread, operation, to_string(copy.site));
    };
    if (!barrier.copies.empty()) return in_flight("tma_load", barrier.copies.front());
    if (!barrier.cluster_copies.empty())
      return in_flight("cluster_copy", barrier.cluster_copies.front());
  }
  return {};
}

}  // namespace fulmen::gpu::emulated
