#include "isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace mbf {
namespace {

struct Level {
  KernelSet kernels;
  bool runnable;
  bool automatic;  // may be chosen by default
};

const std::vector<Level>& levels() {
  static const std::vector<Level> all = [] {
    std::vector<Level> list;
    list.push_back({{"baseline", baseline_kernels(), baseline_shared_kernels()}, true, true});
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl");
    list.push_back({{"avx2x16", avx2_wide_kernels(), avx2_wide_shared_kernels()}, avx2, false});
    list.push_back({{"avx2", avx2_kernels(), avx2_shared_kernels()}, avx2, true});
    list.push_back({{"avx512", avx512_kernels(), avx512_shared_kernels()}, avx512, true});
#endif
    return list;
  }();
  return all;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const KernelSet* find(const std::string& name) {
  for (const Level& level : levels()) {
    if (name != level.kernels.isa) continue;
    if (level.runnable) return &level.kernels;
    throw std::runtime_error("MBF_CPU_ISA: this machine cannot run '" + name +
                             "'; it can run: " + join(runnable_isas()));
  }
  throw std::runtime_error("MBF_CPU_ISA: expected one of " + join(compiled_isas()) + ", got '" +
                           name + "'");
}

const KernelSet* best() {
  const KernelSet* chosen = nullptr;
  for (const Level& level : levels()) {
    if (level.runnable && level.automatic) chosen = &level.kernels;
  }
  return chosen;
}

std::atomic<const KernelSet*>& current() {
  static std::atomic<const KernelSet*> kernels{nullptr};
  return kernels;
}

}  // namespace

std::vector<std::string> compiled_isas() {
  std::vector<std::string> names;
  for (const Level& level : levels()) names.emplace_back(level.kernels.isa);
  return names;
}

std::vector<std::string> runnable_isas() {
  std::vector<std::string> names;
  for (const Level& level : levels()) {
    if (level.runnable) names.emplace_back(level.kernels.isa);
  }
  return names;
}

const KernelSet& current_kernels() {
  const KernelSet* kernels = current().load(std::memory_order_acquire);
  if (kernels == nullptr) {
    const char* forced = std::getenv("MBF_CPU_ISA");
    kernels = forced != nullptr && *forced != '\0' ? find(forced) : best();
    current().store(kernels, std::memory_order_release);
  }
  return *kernels;
}

void select_isa(const std::string& name) {
  current().store(name.empty() ? best() : find(name), std::memory_order_release);
}

}  // namespace mbf
