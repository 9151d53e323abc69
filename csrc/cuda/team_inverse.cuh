// Inverses of the 16 blocks of a tile, each by a team of lanes of one warp.
//
// The sweep of core/spd_sweep.h, four pivots at a time, on a triangle of 4 x 4 patches in
// registers. Of n rows and columns of patches, which are called bands, lane i has the patches (i,
// i), (i, i + 1),
// ... up to half a turn around the circle of bands: every pair of bands once, and all patches of a
// lane have a band in common. Pivots 4 k .. 4 k + 3 take three phases:
//
//   publish    Band k of all other bands and the pivots' own patch go to shared memory, and zeros
//   take
//              their place.
//   eliminate  A lane takes the four columns C of its own band, and L D L^T of the pivots' patch.
//   It
//              computes Y = C L^-T and Z = Y D^-1, and shares Y. The pivots' own C is -I.
//   subtract   A_ij <- A_ij - Z_i Y_j^T in all patches: 64 multiply-adds for four vectors from
//   shared
//              memory. In band k, which is zero, that leaves C P, and -P among the pivots
//              themselves.
//
// These are the sums of single sweeps, in the same order. Sizes are padded to a multiple of four by
// rows of the identity, so that all patches are whole.
#pragma once

#include "../core/bfloat16_inverse.h"
#include "../core/scalar_lane.h"
#include "../core/triangle.h"
#include "device.cuh"

namespace mbf::cuda {

// The lanes that share a block. Team t of a thread block has block t of the tile.
template <int Lanes, int Patches>
class Team {
 public:
  __device__ __forceinline__ Team(int d, float* memory)
      : d_(d),
        bands_((d + kPatch - 1) / kPatch),
        block_(threadIdx.x / Lanes),
        lane_(threadIdx.x % Lanes),
        memory_(memory + block_ * team_floats(Lanes, Patches)),
        patches_(0) {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      // Half a turn away, one of two lanes has the patch.
      const bool has = 2 * s < bands_ || (2 * s == bands_ && lane_ < s);
      if (lane_ < bands_ && has) patches_ |= 1u << s;
    }
  }

  // Loads the rows of the block's triangle from `top` up to `end`, multiples of four, from shared
  // memory, where the thread block has put those of all 16. Adds damping to the diagonal; padding
  // becomes the identity.
  __device__ __forceinline__ void take(int top, int end, const float* rows, float scale,
                                       float damping) {
    for_chunk(top, end, [&](auto visit, int row, const int (&places)[kPatch]) {
      visit([&](float& x, int r, int c, bool diagonal) {
        x = scale * rows[places[r] + c * kRowStride];
        if (diagonal) x += damping;
      });
      if (row + kPatch <= d_) return;
      visit([&](float& x, int r, int, bool diagonal) {
        if (row + r >= d_) x = diagonal ? 1.0f : 0.0f;
      });
    });
  }

  // Writes rows of the inverse to shared memory, where `take` found those of the block; f(x,
  // whether it is on the diagonal) makes of an element what is written.
  template <class F>
  __device__ __forceinline__ void give(int top, int end, float* rows, F f) {
    for_chunk(top, end, [&](auto visit, int, const int (&places)[kPatch]) {
      visit([&](float x, int r, int c, bool diagonal) {
        rows[places[r] + c * kRowStride] = f(-x, diagonal);
      });
    });
  }

  // Leaves -A^-1 in the patches. Returns 0 or the 1-based pivot that failed.
  __device__ __forceinline__ int invert(float limit) {
    int failed = 0;
#pragma unroll 1
    for (int band = 0; band < bands_; ++band) {
      publish(band);
      __syncwarp();
      float z[kPatch][kPatch];
      eliminate(band, limit, z, failed);
      __syncwarp();
      subtract(z);
      __syncwarp();
    }
    const int diagonal = failed_diagonal(limit);  // called by all lanes: a warp has several teams
    return failed != 0 ? failed : diagonal;
  }

  // By how much rounding to bfloat16 must raise the diagonal: diagonal_raise of
  // core/bfloat16_inverse.h, after `invert`. All lanes return it.
  __device__ __forceinline__ float raise() {
    if (lane_ < bands_) {
      float scales[kPatch];
      MBF_UNROLL
      for (int k = 0; k < kPatch; ++k) scales[k] = reciprocal_scale(-a_[0][k][k]);
      store(reinterpret_cast<float4*>(memory_)[lane_], scales);
    }
    __syncwarp();
    float squares = 0;
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (!has(s)) continue;
      float down[kPatch], across[kPatch];
      load(reinterpret_cast<const float4*>(memory_)[lane_], down);
      load(reinterpret_cast<const float4*>(memory_)[other_band(s)], across);
      MBF_UNROLL
      for (int i = 0; i < kPatch; ++i) {
        MBF_UNROLL
        for (int j = 0; j < (s == 0 ? i : kPatch); ++j) {
          const float x = a_[s][i][j];
          squares += scaled_square(x, nearest_bfloat16(x), down[i], across[j]);
        }
      }
    }
    MBF_UNROLL
    for (int step = Lanes / 2; step > 0; step /= 2) {
      squares += __shfl_xor_sync(kWarp, squares, step, Lanes);
    }
    return diagonal_raise(squares, d_);
  }

  __device__ __forceinline__ int block() const { return block_; }
  __device__ __forceinline__ bool leads() const { return lane_ == 0; }

 private:
  // Patch s of a lane is (own band, own band + s), around the circle.
  __device__ __forceinline__ int other_band(int s) const {
    return lane_ + s - (lane_ + s < bands_ ? 0 : bands_);
  }

  __device__ __forceinline__ bool has(int s) const { return (patches_ >> s & 1) != 0; }

  // Slot i of the team's shared memory has four columns of band i. Up to half a turn they are
  // repeated from slot n on, so that a lane finds those of band i + s at a constant distance.
  __device__ __forceinline__ float4* slot(int i) const {
    return reinterpret_cast<float4*>(memory_ + i * kTeamSlot);
  }
  __device__ __forceinline__ float4* pivot_slot() const { return slot(Lanes + Patches); }

  static __device__ __forceinline__ void load(const float4& from, float (&x)[kPatch]) {
    const float4 four = from;
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  }
  static __device__ __forceinline__ void store(float4& to, const float (&x)[kPatch]) {
    to = make_float4(x[0], x[1], x[2], x[3]);
  }

  __device__ __forceinline__ void clear(int s) {
    MBF_UNROLL
    for (int i = 0; i < kPatch; ++i) {
      MBF_UNROLL
      for (int j = 0; j < kPatch; ++j) a_[s][i][j] = 0;
    }
  }

  // Calls f(visit, row, places) for this lane's patches of the lower triangle in rows top .. end -
  // 1: the patch's first row, and where the chunk has the first element of each of its rows.
  // visit(g) calls g(element, row and column in the patch, whether it is on the diagonal).
  template <class F>
  __device__ __forceinline__ void for_chunk(int top, int end, F f) {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      const int other = other_band(s);
      const int row = (lane_ > other ? lane_ : other) * kPatch;
      if (!has(s) || row < top || row >= end) continue;
      const int col = (lane_ > other ? other : lane_) * kPatch;
      int places[kPatch];
      MBF_UNROLL
      for (int r = 0; r < kPatch; ++r) {
        const int element = triangle_index(row, col) - triangle_size(top) + r * row;
        places[r] = (element + triangle_index(r, 0)) * kRowStride + block_;
      }
      const auto upright = [&](auto g) {
        MBF_UNROLL
        for (int r = 0; r < kPatch; ++r) {
          MBF_UNROLL
          for (int c = 0; c < (s == 0 ? r + 1 : kPatch); ++c)
            g(a_[s][r][c], r, c, s == 0 && r == c);
        }
      };
      const auto transposed = [&](auto g) {
        MBF_UNROLL
        for (int r = 0; r < kPatch; ++r) {
          MBF_UNROLL
          for (int c = 0; c < kPatch; ++c) g(a_[s][c][r], r, c, false);
        }
      };
      if (s == 0 || lane_ > other) {
        f(upright, row, places);
      } else {
        f(transposed, row, places);
      }
    }
  }

  // From this lane's band to another one, around the circle.
  __device__ __forceinline__ int distance(int band) const {
    return band - lane_ + (band < lane_ ? bands_ : 0);
  }

  __device__ __forceinline__ void publish(int band) {
    const int steps = distance(band);
    const uint32_t due = steps == 0 ? patches_ : patches_ & (1u << steps);
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if ((due >> s & 1) == 0) continue;
      float4* to = s == 0 ? pivot_slot() : slot(steps == 0 ? lane_ + s : lane_);
      MBF_UNROLL
      for (int i = 0; i < kPatch; ++i) store(to[i], a_[s][i]);
      clear(s);
    }
  }

  // `z` is negated.
  __device__ __forceinline__ void eliminate(int band, float limit, float (&z)[kPatch][kPatch],
                                            int& failed) {
    float c[kPatch][kPatch];
    const int steps = distance(band);
    if (steps == 0 || lane_ >= bands_) {
      MBF_UNROLL
      for (int i = 0; i < kPatch; ++i) {
        MBF_UNROLL
        for (int k = 0; k < kPatch; ++k) c[i][k] = i == k ? -1.0f : 0.0f;
      }
    } else if ((patches_ >> steps & 1) != 0) {  // this lane's patch
      MBF_UNROLL
      for (int i = 0; i < kPatch; ++i) load(slot(lane_)[i], c[i]);
    } else {  // the pivots' lane has it, transposed
      const float4* from = slot(lane_ > band ? lane_ : lane_ + bands_);
      MBF_UNROLL
      for (int k = 0; k < kPatch; ++k) {
        float column[kPatch];
        load(from[k], column);
        MBF_UNROLL
        for (int i = 0; i < kPatch; ++i) c[i][k] = column[i];
      }
    }
    float p[kPatch][kPatch];
    MBF_UNROLL
    for (int i = 0; i < kPatch; ++i) load(pivot_slot()[i], p[i]);
    float reciprocals[kPatch];
    bool fine = true;
    MBF_UNROLL
    for (int k = 0; k < kPatch; ++k) {
      const float r = reciprocal(p[k][k]);
      fine = fine && positive(r) && less(r, limit);
      reciprocals[k] = r;
      float minus_r = -r;
      asm("" : "+f"(minus_r));  // or the compiler multiplies by r and negates every product
      MBF_UNROLL
      for (int i = k + 1; i < kPatch; ++i) {
        const float scaled = minus_r * p[i][k];
        MBF_UNROLL
        for (int j = k + 1; j <= i; ++j) p[i][j] = fmaf(scaled, p[j][k], p[i][j]);
      }
      MBF_UNROLL
      for (int i = 0; i < kPatch; ++i) {
        z[i][k] = minus_r * c[i][k];
        MBF_UNROLL
        for (int j = k + 1; j < kPatch; ++j) c[i][j] = fmaf(z[i][k], p[j][k], c[i][j]);
      }
    }
    if (!fine && failed == 0) {
      MBF_UNROLL
      for (int k = kPatch - 1; k >= 0; --k) {
        const float r = reciprocals[k];
        if (!(positive(r) && less(r, limit))) failed = band * kPatch + k + 1;
      }
    }
    if (lane_ >= bands_) return;
    MBF_UNROLL
    for (int i = 0; i < kPatch; ++i) store(slot(lane_)[i], c[i]);
    if (2 * lane_ + 1 >= bands_) return;
    MBF_UNROLL
    for (int i = 0; i < kPatch; ++i) store(slot(lane_ + bands_)[i], c[i]);
  }

  __device__ __forceinline__ void subtract(const float (&z)[kPatch][kPatch]) {
    MBF_UNROLL
    for (int s = 0; s < Patches; ++s) {
      if (2 * s > bands_) continue;  // the same for all lanes
      MBF_UNROLL
      for (int j = 0; j < kPatch; ++j) {
        float y[kPatch];
        load(slot(lane_ + s)[j], y);
        MBF_UNROLL
        for (int i = 0; i < kPatch; ++i) {
          MBF_UNROLL
          for (int k = 0; k < kPatch; ++k) {
            if (s == 0 && i < j) continue;  // the upper half of a patch on the diagonal is not used
            a_[s][i][j] = fmaf(z[i][k], y[k], a_[s][i][j]);
          }
        }
      }
    }
  }

  // The first element on the diagonal of the inverse that is not positive and below `limit`,
  // counted from 1; 0 if there is none.
  __device__ __forceinline__ int failed_diagonal(float limit) const {
    constexpr int kFine = kMaxBlock + 1;
    int first = kFine;
    MBF_UNROLL
    for (int k = kPatch - 1; k >= 0; --k) {
      const int place = lane_ * kPatch + k;
      const float x = -a_[0][k][k];
      if (place < d_ && !(positive(x) && less(x, limit))) first = place + 1;
    }
    MBF_UNROLL
    for (int step = Lanes / 2; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(kWarp, first, step, Lanes);
      first = other < first ? other : first;
    }
    return first == kFine ? 0 : first;
  }

  int d_;
  int bands_;
  int block_;
  int lane_;  // of the team
  float* memory_;
  uint32_t patches_;  // a bit for each patch that this lane has
  // What is beyond the diagonal, or in a patch that this lane has not, is arbitrary: nothing else
  // comes from it.
  float a_[Patches][kPatch][kPatch];
};

// Calls f(top, end) for consecutive chunks of the rows of a triangle: whole bands with at most so
// many elements, padding included. `end` is a multiple of four, which may be beyond d.
template <class F>
__device__ __forceinline__ void for_chunks(int d, int elements, F f) {
  const int padded = (d + kPatch - 1) / kPatch * kPatch;
#pragma unroll 1
  for (int top = 0, end; top < d; top = end) {
    end = padded;
    if (triangle_size(end) - triangle_size(top) > elements) {
      end = top + kPatch;
#pragma unroll 1
      while (triangle_size(end + kPatch) - triangle_size(top) <= elements) end += kPatch;
    }
    f(top, end);
  }
}

}  // namespace mbf::cuda
