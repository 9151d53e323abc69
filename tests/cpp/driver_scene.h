// Tensors, statistics and inverses for tests of the CPU driver.
//
// All memory has exactly the size that a job asks for, so that the address sanitizer sees any
// access outside it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <type_traits>
#include <vector>

#include "../../csrc/core/triangle.h"
#include "../../csrc/cpu/element_formats.h"
#include "../../csrc/job.h"

using Wide = long double;
using mbf::Format;
using mbf::kTileBlocks;

inline int bytes_of(Format format) {
  return format == Format::Float64 ? 8 : format == Format::Float32 ? 4 : 2;
}

// Half the distance from 1 to the next number of the format.
inline Wide unit_of(Format format) {
  switch (format) {
    case Format::Float64: return 0x1p-53L;
    case Format::Float32: return 0x1p-24L;
    case Format::Float16: return 0x1p-11L;
    default: return 0x1p-8L;
  }
}

template <class T>
void put(unsigned char* at, T x) {
  std::memcpy(at, &x, sizeof x);
}
template <class T>
T take(const unsigned char* at) {
  T x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

inline Wide read(const unsigned char* at, Format format) {
  switch (format) {
    case Format::Float64: return take<double>(at);
    case Format::Float32: return take<float>(at);
    case Format::Float16: return mbf::widen(take<mbf::Float16>(at));
    default: return mbf::widen(take<mbf::BFloat16>(at));
  }
}

inline void write(unsigned char* at, Format format, double x) {
  const auto narrow = static_cast<float>(x);
  switch (format) {
    case Format::Float64: return put(at, x);
    case Format::Float32: return put(at, narrow);
    case Format::Float16: return put(at, mbf::narrow_float16(narrow));
    default: return put(at, mbf::narrow_bfloat16(narrow));
  }
}

// Memory that begins at a cache line.
class CacheLines {
 public:
  explicit CacheLines(size_t bytes) : bytes_(bytes) {
    if (posix_memalign(&data_, 64, bytes) != 0) throw std::bad_alloc();
    std::memset(data_, 0, bytes);
  }
  CacheLines(const CacheLines& other) : CacheLines(other.bytes_) {
    std::memcpy(data_, other.data_, bytes_);
  }
  CacheLines& operator=(const CacheLines&) = delete;
  ~CacheLines() { std::free(data_); }

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// One tensor: contiguous, or in channels_last order with kChannels blocks side by side.
class Tensor {
 public:
  static constexpr int kChannels = 5;

  Tensor(int64_t blocks, int d, Format format, bool contiguous)
      : d_(d), format_(format), contiguous_(contiguous), memory_(blocks * d * bytes_of(format)) {}

  mbf::BlockView view() {
    if (contiguous_) {
      const auto blocks = static_cast<int64_t>(memory_.size()) / (d_ * bytes_of(format_));
      return {memory_.data(), format_, true, blocks, 0, d_, 1};
    }
    return {memory_.data(), format_, false, kChannels, int64_t{kChannels} * d_, 1, kChannels};
  }
  Wide at(int64_t block, int element) const {
    return read(&memory_[place(block, element)], format_);
  }
  void set(int64_t block, int element, double x) {
    write(&memory_[place(block, element)], format_, x);
  }
  Format format() const { return format_; }
  bool operator==(const Tensor& other) const { return memory_ == other.memory_; }

 private:
  size_t place(int64_t block, int element) const {
    const int64_t index = contiguous_ ? block * d_ + element
                                      : block / kChannels * kChannels * d_ + block % kChannels +
                                            int64_t{kChannels} * element;
    return index * bytes_of(format_);
  }

  int d_;
  Format format_;
  bool contiguous_;
  std::vector<unsigned char> memory_;
};

// Five tensors: with and without a padded tile, strided in 16-bit formats, without a gradient, and
// of several whole tiles.
template <class T>
struct Scene {
  static constexpr bool kShort = sizeof(T) == 4;
  static constexpr Format kOwn = kShort ? Format::Float32 : Format::Float64;
  static constexpr int64_t kAbsent = 3;  // the tensor without a gradient

  int d;
  Format inverse_format;
  std::vector<int64_t> blocks{35, 16, 20, 7, 48};
  std::vector<int64_t> tile_start{0};
  std::vector<Tensor> params, grads, momenta;
  std::vector<T> stats;
  CacheLines inverse;
  std::vector<mbf::Tally> tallies;
  std::vector<int32_t> info;
  std::vector<T> directions;
  std::vector<mbf::TileNorms> norms;
  std::vector<double> damping, targets;
  std::vector<mbf::BlockView> param_views, grad_views, momentum_views;

  Scene(int size, Format stored_inverse, std::mt19937& random)
      : d(size), inverse_format(stored_inverse), inverse(inverse_bytes(size, stored_inverse)) {
    for (int64_t n : blocks) {
      const bool strided = n % Tensor::kChannels == 0 && n < 32;
      const bool halves = strided && kShort;
      params.emplace_back(n, d, halves ? Format::BFloat16 : kOwn, !strided);
      grads.emplace_back(n, d, halves ? Format::Float16 : kOwn, true);
      momenta.emplace_back(n, d, kOwn, !strided);
      tile_start.push_back(tile_start.back() + tiles_of(n));
      damping.push_back(0.1 + 0.05 * static_cast<double>(params.size()));
      targets.push_back(2.0);
    }
    const int64_t tiles = tile_start.back();
    stats.resize(tiles * elements() * kTileBlocks);
    tallies.resize(tiles);
    info.resize(tiles * kTileBlocks);
    // Room for three tiles more than the largest tensor: rounds of several tensors.
    directions.resize((tiles_of(48) + 3) * kTileBlocks * d);
    norms.resize(tiles);
    std::normal_distribution<double> normal;
    for (auto* list : {&params, &grads, &momenta}) {
      for (size_t t = 0; t < list->size(); ++t) {
        for (int64_t b = 0; b < blocks[t]; ++b) {
          for (int e = 0; e < d; ++e) (*list)[t].set(b, e, normal(random));
        }
      }
    }
  }

  static int64_t tiles_of(int64_t n) { return (n + kTileBlocks - 1) / kTileBlocks; }
  int elements() const { return mbf::triangle_size(d); }
  int64_t tiles() const { return tile_start.back(); }

  // A job that does nothing yet.
  mbf::TileJob job() {
    param_views.clear();
    grad_views.clear();
    momentum_views.clear();
    for (size_t t = 0; t < blocks.size(); ++t) {
      param_views.push_back(params[t].view());
      grad_views.push_back(grads[t].view());
      momentum_views.push_back(momenta[t].view());
    }
    grad_views[kAbsent].data = nullptr;
    mbf::TileJob job{};
    job.block_size = d;
    job.float64 = !kShort;
    job.tensors = static_cast<int64_t>(blocks.size());
    job.tile_start = tile_start.data();
    job.blocks = blocks.data();
    job.params = param_views.data();
    job.grads = grad_views.data();
    job.momenta = momentum_views.data();
    job.stats = stats.data();
    job.inverse = inverse.data();
    job.inverse_format = inverse_format;
    job.tallies = tallies.data();
    job.info = info.data();
    job.beta = 0.75;
    job.damping = {damping.data(), false, false};
    job.scalars = {0.125, 0.875, 0.0625, 0.5, 0.0};
    job.directions = directions.data();
    job.direction_tiles = static_cast<int64_t>(directions.size()) / (kTileBlocks * d);
    job.norms = norms.data();
    return job;
  }

  Wide g(int64_t tile, int lane, int i, int j) const {
    return stats[(tile * elements() + mbf::symmetric_index(i, j)) * kTileBlocks + lane];
  }
  Wide p(int64_t tile, int lane, int i, int j) const {
    const int64_t index = (tile * elements() + mbf::symmetric_index(i, j)) * kTileBlocks + lane;
    return read(inverse.data() + index * bytes_of(inverse_format), inverse_format);
  }

  // Whether everything that a job writes has the same bits.
  bool same_results(const Scene& other) const {
    const auto equal = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return params == other.params && momenta == other.momenta && equal(stats, other.stats) &&
           equal(tallies, other.tallies) && info == other.info && equal(targets, other.targets) &&
           std::memcmp(inverse.data(), other.inverse.data(), inverse.size()) == 0;
  }

 private:
  static size_t inverse_bytes(int d, Format format) {
    int64_t tiles = 0;
    for (int64_t n : {35, 16, 20, 7, 48}) tiles += tiles_of(n);
    return tiles * mbf::triangle_size(d) * kTileBlocks * bytes_of(format);
  }
};
