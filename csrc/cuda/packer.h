// Fills parameter structs with as many entries as fit; every struct is one launch.
#pragma once

#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "parameters.h"

namespace mbf::cuda {

constexpr int64_t kMaxUnits = std::numeric_limits<int32_t>::max();  // thread blocks per launch

inline Strides strides_of(const BlockView& view) {
  return {view.inner, view.outer_stride, view.inner_stride, view.element_stride};
}

// Entries grow from the front of a pool and distinct strides from its back, until they meet.
template <class P>
class Packer {
 public:
  using Entry = typename P::Entry;
  using Stride = typename P::Stride;

  explicit Packer(const typename P::Header& header) : header_(header) { start(); }

  // Adds an entry that takes `units` thread blocks; `views` are its tensors in the order of
  // Entry::natural, null where the job does not use one. A view has a format and says whether it is
  // contiguous; strides_of returns its strides.
  template <class View = BlockView>
  void add(const Entry& entry, int64_t units, std::initializer_list<const View*> views) {
    add(entry, units, std::span<const View* const>(views.begin(), views.size()));
  }
  template <class View>
  void add(const Entry& entry, int64_t units, std::span<const View* const> views) {
    if (try_add(entry, units, views)) return;
    flush();
    try_add(entry, units, views);
  }

  // Calls f(parameters as bytes, thread blocks) for every launch.
  template <class F>
  void finish(F f) {
    flush();
    for (auto& [bytes, units] : done_) f(std::move(bytes), static_cast<uint32_t>(units));
  }

 private:
  P& parameters() { return *reinterpret_cast<P*>(bytes_.data()); }

  void start() {
    bytes_.assign(sizeof(P), 0);
    parameters().job = header_;
    units_ = 0;
  }

  void flush() {
    if (parameters().count == 0) return;
    done_.emplace_back(std::move(bytes_), units_);
    start();
  }

  // The place of a view's strides: one of the first `used`, or else the next one; kContiguous if
  // the pool has no room for another.
  template <class View>
  uint8_t place_of(const View& view, size_t entries_end, uint32_t& used) {
    const Stride wanted = strides_of(view);
    unsigned char* end = parameters().pool + P::kPool;
    for (uint32_t place = 1; place <= used; ++place) {
      if (std::memcmp(end - place * sizeof(Stride), &wanted, sizeof wanted) == 0) return place;
    }
    const bool full = used == std::numeric_limits<uint8_t>::max() ||
                      entries_end + (used + 1) * sizeof(Stride) > P::kPool;
    if (full) return kContiguous;
    ++used;
    std::memcpy(end - used * sizeof(Stride), &wanted, sizeof wanted);
    return static_cast<uint8_t>(used);
  }

  template <class View>
  bool try_add(Entry entry, int64_t units, std::span<const View* const> views) {
    P& p = parameters();
    uint32_t used = p.strides;
    const size_t entries_end = (p.count + size_t{1}) * sizeof(Entry);
    if (units_ + units > kMaxUnits || entries_end + used * sizeof(Stride) > P::kPool) return false;
    if constexpr (requires { entry.natural; }) {
      int i = 0;
      for (const View* view : views) {
        Natural& natural = entry.natural[i++];
        if (view == nullptr) continue;
        natural = {view->format, kContiguous};
        if (view->contiguous) continue;
        natural.place = place_of(*view, entries_end, used);
        if (natural.place == kContiguous) return false;
      }
    }
    if constexpr (requires { entry.first_unit; }) {
      entry.first_unit = static_cast<uint32_t>(units_);
    }
    std::memcpy(p.pool + p.count * sizeof(Entry), &entry, sizeof entry);
    p.strides = used;
    ++p.count;
    units_ += units;
    return true;
  }

  typename P::Header header_;
  std::vector<unsigned char> bytes_;
  int64_t units_ = 0;
  std::vector<std::pair<std::vector<unsigned char>, int64_t>> done_;
};

}  // namespace mbf::cuda
