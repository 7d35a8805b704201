#include <algorithm>
#include <memory>
#include <string>

#include "cpu/families.h"
#include "cpu/tile_runner.h"
#include "cpu/tuning.h"

namespace fulmen::cpu {
namespace {

// Key rows of a prefill tile. More amortise the output's load and store; but scores, queries and
// values have to share L1 and a part of L2: both measured best on Zen 5.
int choose_block_n(const Problem& p, int group) { return has_narrow_rows(p, group) ? 128 : 64; }

TileTasks int8_tile_tasks(const Problem& problem, const IsaTable& table, int block_n, int tiles) {
  TileTasks tasks;
  tasks.function = table.int8.prefill_task[static_cast<int>(problem.dtype)];
  tasks.int8 = &table.int8;
  tasks.lanes = table.lanes;
  tasks.scratch_floats = table.int8.scratch_floats(problem, block_n, tiles);
  return tasks;
}

// precision: the family's.
TileTasks tile_tasks(const Problem& problem, Precision precision, const IsaTable& table,
                     int block_n, int tiles) {
  const int dtype = static_cast<int>(problem.dtype);
  TileTasks tasks;
  tasks.function = table.prefill_task[dtype];
  if (precision == Precision::int8) {
    tasks = int8_tile_tasks(problem, table, block_n, tiles);
  } else {
    tasks.scratch_floats =
        table.scratch_floats != nullptr
            ? table.scratch_floats(problem, block_n, tiles)
            : tile_scratch(problem, table.lanes, table.group[dtype], block_n, tiles).total;
  }
  tasks.table = &table;
  tasks.block_n = block_n;
  tasks.tiles_per_task = tiles;
  tasks.summarises_mask = true;
  return tasks;
}

class PrefillKernel final : public FamilyKernel {
 public:
  using FamilyKernel::FamilyKernel;
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& /*device*/,
                                          const AttentionOptions& options) const override {
    const ThreadSettings settings = thread_settings(options);
    const int threads = settings.num_threads;
    int block_n = usual_block_n(problem),
        tiles = choose_tiles_per_task(problem, *isa_.table, threads);
    tuning::Choice choice{{block_n, tiles},
                          {{"block_n", block_n, "default"}, {"tiles_per_task", tiles, "default"}},
                          {}};
    if (tuning::is_anything_asked(options, tuned_chip(), name_)) {
      Result<tuning::Choice> asked = tuning::tuned_choice(
          problem, options, cpu_identity(name_, problem, threads), space(problem, threads));
      if (!asked.ok()) return asked.status();
      choice = std::move(asked).value();
      block_n = choice.values[0];
      tiles = choice.values[1];
    }
    auto runner = std::make_unique<TileRunner>(
        problem, name_, settings,
        tile_tasks(problem, family_.precision, *isa_.table, block_n, tiles));
    runner->set_parameters(std::move(choice));
    return std::unique_ptr<Runner>(std::move(runner));
  }
  Result<KernelTuning> tuning(const Problem& problem, const std::string& /*device*/,
                              const AttentionOptions& options) const override {
    const int threads = thread_settings(options).num_threads;
    return cpu_tuning(cpu_identity(name_, problem, threads), space(problem, threads));
  }

 private:
  int usual_block_n(const Problem& problem) const {
    const IsaTable& table = *isa_.table;
    return table.block_n > 0
               ? table.block_n
               : choose_block_n(problem, table.group[static_cast<int>(problem.dtype)]);
  }
  tuning::Space space(const Problem& problem, int threads) const {
    const int block_n = usual_block_n(problem);
    tuning::Space space;
    // Matrix tiles have a number of keys that is fixed.
    space.parameters = {
        {"block_n", block_n,
         isa_.table->block_n > 0 ? std::vector<int>{block_n} : std::vector<int>{64, kMaxBlockN}},
        {"tiles_per_task",
         choose_tiles_per_task(problem, *isa_.table, threads),
         {1, 2, 4, 8, 16, 32}}};
    tuning::include_usual(space);
    const int64_t tiles = query_tiles(problem);
    space.takes = [tiles](std::span<const int> values) {
      if (values[1] < 2 || values[1] < 2 * tiles) return Support{};
      return Support::no("the queries are " + std::to_string(tiles) + " tiles");
    };
    return space;
  }
};

}  // namespace

std::unique_ptr<const Kernel> make_prefill_kernel(const Family& family, const InstructionSet& isa) {
  return std::make_unique<PrefillKernel>(family, isa);
}

}  // namespace fulmen::cpu
