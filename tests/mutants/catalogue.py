"""The planted bugs, by the part of the project that they are in.

Each belongs to a kind of fault that was once made or that a change could easily make. Text that is
no longer in the source is reported as stale: the bug then has to be planted anew.
"""

from .mutant import Mutant

CUDA_KERNELS = "tests/cuda/test_kernels.py"
CUDA_SHARED = "tests/cuda/test_shared_kernels.py"
TRITON_PTX = "tests/triton/test_ptx.py"
INTERPRETER = "tests/triton/test_interpreter.py"
CUDA_RUNTIME = "tests/cuda_runtime"

HOST = (
    Mutant(
        "strides-merged",
        "strides that differ only in that of the elements share a place",
        "csrc/cuda/packer.h",
        "if (std::memcmp(end - place * sizeof(Stride), &wanted, sizeof wanted) == 0) return place;",
        "if (std::memcmp(end - place * sizeof(Stride), &wanted, sizeof wanted - 8) == 0)\n"
        "        return place;",
        ("tests/cuda/test_plan.py", CUDA_KERNELS, "-k", "cpp_program or strided"),
    ),
    Mutant(
        "second-struct-without-header",
        "a launch that continues another one has no scalars",
        "csrc/cuda/packer.h",
        "    done_.emplace_back(std::move(bytes_), units_);\n    start();",
        "    done_.emplace_back(std::move(bytes_), units_);\n    bytes_.assign(sizeof(P), 0);\n"
        "    units_ = 0;",
        ("tests/cuda/test_plan.py", "tests/cuda/test_calls.py", "-k", "cpp_program or one_launch"),
    ),
    Mutant(
        "last-tiles-forgotten",
        "the blocks of a tensor's last segment are counted from the wrong tile",
        "csrc/cuda/plan.cpp",
        "const int64_t end = std::min(job.blocks[tensor], (last - start) * kTileBlocks);",
        "const int64_t end = std::min(job.blocks[tensor], (last - first) * kTileBlocks);",
        ("tests/cuda/test_plan.py", CUDA_KERNELS, "-k", "cpp_program or parts"),
    ),
)

# What a model of the CUDA runtime finds, which host code runs on.
RUNTIME = (
    Mutant(
        "null-stream",
        "a launch on the null stream",
        "csrc/cuda/launch.cu",
        "static_cast<cudaStream_t>(stream)",
        "cudaStream_t{}",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "device-not-restored",
        "the device is not restored",
        "csrc/cuda/launch.cu",
        "if (changed_) cudaSetDevice(before_);",
        "",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "context-on-another-device",
        "a context on another device",
        "csrc/cuda/launch.cu",
        "    if (device == before_) return;\n",
        "",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "error-left-in-the-runtime",
        "an error stays in the runtime",
        "csrc/cuda/launch.cu",
        "  cudaGetLastError();",
        "  ",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "old-driver",
        "any driver is good enough",
        "csrc/cuda/launch.cu",
        "  check_driver();\n",
        "",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-current-device",
        "kernels are launched on the current device",
        "mbf_kernels/backends/triton/device.py",
        'device if device.type == "cuda" else -1',
        "-1",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-target-of-another-device",
        "the target of the current device",
        "mbf_kernels/backends/triton/device.py",
        "    with on(device):",
        "    if True:",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-graph-table-overwritten",
        "the table of a captured graph is overwritten",
        "mbf_kernels/backends/triton/table.py",
        "            if self._in_graph:",
        "            if False:",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-graph-table-freed",
        "the table of a captured graph is freed",
        "mbf_kernels/backends/triton/table.py",
        "                self._kept.append(self._copy)\n",
        "",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-moved-gradients",
        "moved gradients are not noticed",
        "mbf_kernels/backends/triton/table.py",
        "if values != self._values:",
        "if self._values is None:",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-values-of-a-capture",
        "values kept after a capture recorded their copy",
        "mbf_kernels/backends/triton/table.py",
        "            self._values = None  #",
        "            #",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-pinned-memory-freed",
        "a graph copies from pinned memory that was freed",
        "mbf_kernels/backends/triton/table.py",
        "            if capturing:\n                self._kept.append(host)\n",
        "",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-copy-that-waits",
        "a table is filled by a copy that waits",
        "mbf_kernels/backends/triton/table.py",
        "self._copy.copy_(host, non_blocking=True)",
        "self._copy.copy_(host)",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-views-shared",
        "all launches of a call have the same strides",
        "mbf_kernels/backends/triton/table.py",
        "return self._refreshed(self._views, group, found)",
        "return self._refreshed(self._views, None, found)",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "triton-scratch-freed",
        "scratch memory of a graph is freed",
        "mbf_kernels/backends/triton/table.py",
        "            self._scratch.append(torch.empty",
        "            self._scratch[:] = (torch.empty",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "count-read-early",
        "a count is read before its copy has arrived",
        "python/mbf_optim/failures.py",
        "        self._event.synchronize()\n",
        "",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "count-taken-for-landed",
        "a count is taken for landed",
        "python/mbf_optim/failures.py",
        "return bool(self._event.query())",
        "return True",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "count-event-on-another-device",
        "the event of a count is on the current device",
        "python/mbf_optim/failures.py",
        "torch.cuda.current_stream(failed.device)",
        "torch.cuda.current_stream()",
        (CUDA_RUNTIME,),
    ),
    Mutant(
        "count-queried-in-a-capture",
        "an event is queried during a capture",
        "python/mbf_optim/failures.py",
        "            return False  # a query",
        "            pass  # a query",
        (CUDA_RUNTIME,),
    ),
)

CUDA = (
    Mutant(
        "bfloat16-truncated",
        "results in bfloat16 are cut off, not rounded",
        "csrc/cuda/device.cuh",
        "return __float2bfloat16_rn(x);",
        "return __float2bfloat16_rz(x);",
        (CUDA_KERNELS, "-k", "combinations"),
    ),
    Mutant(
        "tally-without-barrier",
        "one lane writes the weight of a tile before the others have read it",
        "csrc/cuda/thread_kernels.cuh",
        "  __syncwarp();  // all lanes have read the old weight\n",
        "",
        (CUDA_KERNELS, "-k", "fused_steps_of_every_size"),
    ),
    Mutant(
        "norms-without-barrier",
        "the first thread adds up norms that other warps may not have written",
        "csrc/cuda/thread_kernels.cuh",
        "  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = own;\n  __syncthreads();\n",
        "  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = own;\n",
        (CUDA_KERNELS, "-k", "target_norms"),
    ),
    Mutant(
        "failed-block-overwritten",
        "a block that cannot be inverted loses its last inverse",
        "csrc/cuda/thread_kernels.cuh",
        "if (failed == 0) store_inverse<D>",
        "if (failed >= 0) store_inverse<D>",
        (CUDA_KERNELS, "-k", "failed_blocks"),
    ),
    Mutant(
        "bad-block-in-the-trace",
        "one gradient that is not finite spoils the mean diagonal of its tensor",
        "csrc/cuda/device.cuh",
        "return isfinite(x) ? x : 0.0;",
        "return x;",
        (CUDA_KERNELS, "-k", "left_out or bad_gradient"),
    ),
    Mutant(
        "least-damping-forgotten",
        "a tensor whose gradients are all zero has no inverse under relative damping",
        "csrc/cuda/tensor_kernels.cuh",
        "= fmax(damping * trace / tensor.elements, kLeast);",
        "= damping * trace / tensor.elements;",
        (CUDA_KERNELS, "tests/cuda/test_calls.py", "-k", "relative"),
    ),
    Mutant(
        "shared-parts-cut",
        "the last part of a layer's rows is not in its statistics",
        "csrc/cuda/shared_update.cuh",
        "for (int64_t part = 0; part < entry.parts; ++part) sum +=",
        "for (int64_t part = 0; part + 1 < entry.parts; ++part) sum +=",
        (CUDA_SHARED, "-k", "several_parts"),
    ),
    Mutant(
        "shared-tile-raced",
        "the next rows overwrite those that other threads still multiply",
        "csrc/cuda/shared_update.cuh",
        "piece + at.column * kOctet, sums);\n    }\n    __syncthreads();\n",
        "piece + at.column * kOctet, sums);\n    }\n",
        (CUDA_SHARED, "-k", "every_width or several_parts"),
    ),
    Mutant(
        "shared-step-raced",
        "directions are stored over momenta that other threads still read",
        "csrc/cuda/shared_step.cuh",
        "    adam = adam_square(task, memory.rows);\n    __syncthreads();\n",
        "    adam = adam_square(task, memory.rows);\n",
        (CUDA_SHARED, "-k", "all_kinds or rescaled"),
    ),
    Mutant(
        "bias-column-of-weight",
        "the joined bias is read from the weight's column",
        "csrc/cuda/shared_step.cuh",
        "memory.rows[row * task.stride + memory.columns.place[column]]);\n    });\n    return;",
        "memory.rows[row * task.stride + memory.columns.place[0]]);\n    });\n    return;",
        (CUDA_SHARED, "-k", "every_width"),
    ),
)

TRITON = (
    Mutant(
        "triton-first-item-skipped",
        "a part of the tiles that begins inside an item of work leaves that item out",
        "mbf_kernels/backends/triton/table.py",
        "return max(bisect_right(self.tiles, tiles[0]) - 1, 0), bisect_left",
        "return bisect_right(self.tiles, tiles[0]), bisect_left",
        (INTERPRETER, "-k", "parts"),
    ),
    Mutant(
        "triton-tally-barrier",
        "one thread writes the weight of a tile before the others have read it",
        "mbf_kernels/backends/triton/register_kernels.py",
        "    # All lanes of a tile load its weight before one of them stores it.\n"
        "    tl.debug_barrier()\n",
        "",
        (TRITON_PTX, "-k", "TestSm80 and fused_steps"),
    ),
    Mutant(
        "triton-ticket-relaxed",
        "the last program of a tensor may read norms that others have not written yet",
        "mbf_kernels/backends/triton/tensor_sums.py",
        'sem="acq_rel"',
        'sem="relaxed"',
        (TRITON_PTX, "-k", "TestSm80 and several_programs"),
    ),
    Mutant(
        "triton-norms-without-barrier",
        "a program takes its ticket before all of its threads have written their norms",
        "mbf_kernels/backends/triton/tensor_sums.py",
        "    items = tl.load(spans + 2 * tensor + 1)\n    tl.debug_barrier()\n",
        "    items = tl.load(spans + 2 * tensor + 1)\n",
        (TRITON_PTX, "-k", "TestSm80 and several_programs"),
        survives="in what Triton compiles, the thread that stores the norms takes the ticket",
    ),
    Mutant(
        "triton-ticket-kept",
        "the tickets of a tensor are not set back, so that its norms are added up only once",
        "mbf_kernels/backends/triton/tensor_sums.py",
        "        tl.store(tickets + tensor, 0)\n",
        "",
        (INTERPRETER, "-k", "target_norms"),
    ),
    Mutant(
        "triton-outer-stride",
        "blocks of channels_last tensors are looked for at the wrong stride",
        "mbf_kernels/backends/triton/natural_memory.py",
        "offsets = (block // inner) * outer_stride + (block % inner) * inner_stride",
        "offsets = (block // inner) * inner_stride + (block % inner) * outer_stride",
        (INTERPRETER, "-k", "channels_last"),
    ),
    Mutant(
        "triton-bias-raced",
        "a thread stores the momentum of a bias that another one has not loaded yet",
        "mbf_kernels/backends/triton/shared_step_kernels.py",
        "several threads load an element that one of them stores.\n    tl.debug_barrier()\n",
        "several threads load an element that one of them stores.\n",
        (TRITON_PTX, "-k", "TestSharedBlocks"),
    ),
)

OPTIMIZER = (
    Mutant(
        "correction-one-late",
        "the momentum is corrected for one step too many",
        "python/mbf_optim/options.py",
        "(1.0 - momentum ** (k + nesterov))",
        "(1.0 - momentum ** (k + 1 + nesterov))",
        ("tests/optimizer/test_trajectory.py", "-k", "torch"),
    ),
    Mutant(
        "schedule-shifted",
        "statistics are updated one step after they are due",
        "python/mbf_optim/schedule.py",
        "return self._whole_update(k) or k % self.stats_every == 0",
        "return self._whole_update(k) or k % self.stats_every == 1",
        ("tests/optimizer/test_trajectory.py", "-k", "torch"),
    ),
    Mutant(
        "graph-with-old-numbers",
        "a replayed graph has the learning rate and correction of its recording",
        "python/mbf_optim/graphed_steps.py",
        "            self._optimizer.before_replay()\n",
        "            self._optimizer.steps_taken += 1\n",
        ("tests/optimizer/test_graphed_steps.py",),
    ),
    Mutant(
        "elementwise-weight-not-counted",
        "the averages of elementwise layers keep the weight of their first step",
        "python/mbf_optim/elementwise_engine.py",
        "        self._weights[chosen] = self._next_weight(cohort, group)\n",
        "",
        ("tests/optimizer/test_trajectory.py", "tests/optimizer/test_stepping.py"),
    ),
    Mutant(
        "nesterov-looks-back",
        "Nesterov's momentum takes the old momentum",
        "mbf_kernels/backends/reference.py",
        "ahead = torch.lerp(m, scalars.momentum * m + gradient, scalars.nesterov)",
        "ahead = torch.lerp(m, scalars.momentum * (m - gradient) + gradient, scalars.nesterov)",
        ("tests/optimizer/test_trajectory.py", "-k", "torch"),
    ),
)

MUTANTS = (*HOST, *RUNTIME, *CUDA, *TRITON, *OPTIMIZER)
