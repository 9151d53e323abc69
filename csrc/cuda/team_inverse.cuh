// Inverses of the 16 blocks of a tile, each by a team of lanes of one warp.
//
// The sweep of core/spd_sweep.h with the triangle spread over the team in 4 x 4 patches, which stay
// in registers for all pivots. The column of each pivot goes through shared memory; a patch loads
// two vectors of four from there for 16 multiply-adds. Sizes are padded to a multiple of four by
// rows of the identity, so that all patches are whole.
#pragma once

#include "../core/bfloat16_inverse.h"
#include "../core/scalar_lane.h"
#include "../core/triangle.h"
#include "device.cuh"

namespace mbf::cuda {

constexpr int kRowStride = kTileBlocks + 1;  // of TeamMemory::rows

// The lanes that share a block. Team t of a thread block has block t of the tile.
template <int Lanes, int Patches>
class Team {
 public:
  __device__ __forceinline__ Team(int d, float* columns)
      : d_(d),
        bands_((d + kPatch - 1) / kPatch),
        block_(threadIdx.x / Lanes),
        column_(columns + block_ * TeamMemory::column_stride(bands_ * kPatch)),
        other_column_(column_ + TeamMemory(d).columns) {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      int left = s * Lanes + threadIdx.x % Lanes;
      int band = 0;
      while (left > band) left -= ++band;
      place_[s] = band < bands_ ? band << 8 | left : kNone;
    }
  }

  // Loads rows 4 band .. 4 band + 3 of the block's triangle from shared memory, where the thread
  // block has put those of all 16. Adds damping to the diagonal; padding becomes the identity.
  __device__ __forceinline__ void take(int band, const float* rows, float scale, float damping) {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (band_of(s) != band) continue;
      const int left = across_of(s) * kPatch;
      MBF_UNROLL
      for (int r = 0; r < kPatch; ++r) {
        const int row = band * kPatch + r;
        const float* line = rows + row_place(band, r, left);
        MBF_UNROLL
        for (int c = 0; c < kPatch; ++c) {
          const bool diagonal = row == left + c;
          // Beyond the diagonal, and in rows that are padding, `line` has other elements.
          const bool there = row < d_ && left + c <= row;
          const float x = scale * line[c * kRowStride];
          a_[s][r][c] = there ? (diagonal ? x + damping : x) : (diagonal ? 1.0f : 0.0f);
        }
      }
    }
  }

  // Leaves -A^-1 in the patches. Returns 0 or the 1-based pivot that failed.
  __device__ __forceinline__ int invert(float limit) {
    int failed = 0;
    for (int band = 0; band < bands_; ++band) {
      MBF_UNROLL
      for (int k = 0; k < kPatch; ++k) {
        publish_column(band, k);
        __syncwarp();
        const float r = reciprocal(column_[band * kPatch + k]);
        if (failed == 0 && !(positive(r) && less(r, limit))) failed = band * kPatch + k + 1;
        sweep(band, k, r);
        float* next = other_column_;
        other_column_ = column_;
        column_ = next;
      }
    }
    const int diagonal = failed_diagonal(limit);  // called by all lanes: a warp may have two teams
    return failed != 0 ? failed : diagonal;
  }

  // By how much rounding to bfloat16 must raise the diagonal: diagonal_raise of
  // core/bfloat16_inverse.h, after `invert`. All lanes return it.
  __device__ __forceinline__ float raise() {
    __syncwarp();  // the last sweep has read the columns
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (place_[s] == kNone || band_of(s) != across_of(s)) continue;
      MBF_UNROLL
      for (int k = 0; k < kPatch; ++k) {
        column_[band_of(s) * kPatch + k] = reciprocal_scale(-a_[s][k][k]);
      }
    }
    __syncwarp();
    float squares = 0;
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (place_[s] == kNone) continue;
      const bool on_diagonal = band_of(s) == across_of(s);
      MBF_UNROLL
      for (int i = 0; i < kPatch; ++i) {
        const float down = column_[band_of(s) * kPatch + i];
        MBF_UNROLL
        for (int j = 0; j < kPatch; ++j) {
          const float x = a_[s][i][j];
          const float across = column_[across_of(s) * kPatch + j];
          const float square = scaled_square(x, nearest_bfloat16(x), down, across);
          if (j < i || !on_diagonal) squares += square;
        }
      }
    }
    MBF_UNROLL
    for (int step = Lanes / 2; step > 0; step /= 2) {
      squares += __shfl_xor_sync(kWarp, squares, step, Lanes);
    }
    return diagonal_raise(squares, d_);
  }

  // Writes rows 4 band .. 4 band + 3 of the inverse to shared memory, where `take` found its rows.
  __device__ __forceinline__ void give(int band, float* rows) const {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (band_of(s) != band) continue;
      const int left = across_of(s) * kPatch;
      MBF_UNROLL
      for (int r = 0; r < kPatch; ++r) {
        const int row = band * kPatch + r;
        float* line = rows + row_place(band, r, left);
        MBF_UNROLL
        for (int c = 0; c < kPatch; ++c) {
          if (row < d_ && left + c <= row) line[c * kRowStride] = -a_[s][r][c];
        }
      }
    }
  }

  __device__ __forceinline__ int block() const { return block_; }
  __device__ __forceinline__ int bands() const { return bands_; }
  __device__ __forceinline__ bool leads() const { return threadIdx.x % Lanes == 0; }

 private:
  static constexpr int kNone = -1;

  // Returns x and hides that from the compiler, which would otherwise keep the addresses of all
  // patches in registers that the patches need.
  static __device__ __forceinline__ int fresh(int x) {
    asm volatile("" : "+r"(x));
    return x;
  }

  __device__ __forceinline__ int band_of(int s) const { return fresh(place_[s]) >> 8; }
  __device__ __forceinline__ int across_of(int s) const { return fresh(place_[s]) & 255; }

  // Index in `rows` of this block's element in row r of the band, column `col`.
  __device__ __forceinline__ int row_place(int band, int r, int col) const {
    return (r * band * kPatch + triangle_index(r, 0) + col) * kRowStride + block_;
  }

  // Writes column 4 band + k as it is before the sweep to shared memory. Above the diagonal
  // it is row 4 band + k. Patches on the diagonal are valid in their lower triangle only.
  __device__ __forceinline__ void publish_column(int band, int k) {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      const bool in_row = band_of(s) == band;
      const bool on_diagonal = in_row && across_of(s) == band;
      if (in_row) {
        MBF_UNROLL
        for (int c = 0; c < kPatch; ++c) {
          column_[across_of(s) * kPatch + c] = on_diagonal && c > k ? a_[s][c][k] : a_[s][k][c];
        }
      } else if (place_[s] != kNone && across_of(s) == band) {
        MBF_UNROLL
        for (int r = 0; r < kPatch; ++r) column_[band_of(s) * kPatch + r] = a_[s][r][k];
      }
    }
  }

  __device__ __forceinline__ void sweep(int band, int k, float r) {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (place_[s] == kNone) continue;
      const float4 down4 = reinterpret_cast<const float4*>(column_)[band_of(s)];
      const float4 across4 = reinterpret_cast<const float4*>(column_)[across_of(s)];
      const float scaled[kPatch] = {down4.x * r, down4.y * r, down4.z * r, down4.w * r};
      const float across[kPatch] = {across4.x, across4.y, across4.z, across4.w};
      MBF_UNROLL
      for (int i = 0; i < kPatch; ++i) {
        MBF_UNROLL
        for (int j = 0; j < kPatch; ++j) a_[s][i][j] = a_[s][i][j] - scaled[i] * across[j];
      }
      if (band_of(s) == band) {
        MBF_UNROLL
        for (int j = 0; j < kPatch; ++j) a_[s][k][j] = across[j] * r;
      }
      if (across_of(s) == band) {
        MBF_UNROLL
        for (int i = 0; i < kPatch; ++i) a_[s][i][k] = scaled[i];
        if (band_of(s) == band) a_[s][k][k] = -r;
      }
    }
  }

  // The first element on the diagonal of the inverse that is not positive and below `limit`,
  // counted from 1; 0 if there is none.
  __device__ __forceinline__ int failed_diagonal(float limit) const {
    constexpr int kFine = kMaxBlock + 1;
    int first = kFine;
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (place_[s] == kNone || band_of(s) != across_of(s)) continue;
      MBF_UNROLL
      for (int k = kPatch - 1; k >= 0; --k) {
        const int place = band_of(s) * kPatch + k;
        const float x = -a_[s][k][k];
        if (place < d_ && place < first && !(positive(x) && less(x, limit))) first = place + 1;
      }
    }
    MBF_UNROLL
    for (int step = Lanes / 2; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(kWarp, first, step, Lanes);
      first = other < first ? other : first;
    }
    return first == kFine ? 0 : first;
  }

  int d_;
  int bands_;  // rows of patches
  int block_;
  float* column_;        // of the current pivot
  float* other_column_;  // of the last one: some lanes may still read it
  int place_[Patches];   // row of a patch among patches, times 256, and its column; or kNone
  float a_[Patches][kPatch][kPatch];
};

}  // namespace mbf::cuda
