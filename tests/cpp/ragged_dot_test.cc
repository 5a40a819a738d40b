// Products of rows in groups: any sizes of groups, any views, floats of any mixture. Elements are small whole numbers, so that
// sums are exact in float32. What no row may read is NaN.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "typed_case.h"

namespace {

using namespace aspen;
using namespace aspen::cpu::testing;

// The elements of a dense operand along all but its first `rank` axes, there `at`, become NaN.
void spoil(TypedOperand& operand, const Index& at) {
  int64_t first = 0, count = 1;
  for (int d = 0; d < operand.view.rank; ++d) {
    const auto axis = static_cast<size_t>(d);
    if (axis < at.size()) first += at[axis] * operand.view.strides[d];
    if (axis >= at.size()) count *= operand.view.shape[d];
  }
  const auto bytes = static_cast<size_t>(size_of(operand.view.dtype));
  std::memset(operand.buffer.data() + static_cast<size_t>(first) * bytes, 0xff, static_cast<size_t>(count) * bytes);
}

// All elements in row-major order, and one more, so that an empty operand has an address too.
std::vector<double> values(const TypedOperand& operand, const Index& shape) {
  std::vector<double> all(static_cast<size_t>(size_of_shape(shape)) + 1);
  Index index(shape.size(), 0);
  const Index zero = index;
  for (size_t i = 0; i + 1 < all.size(); ++i, next(index, zero, shape)) all[i] = operand.at(index);
  return all;
}

int32_t random_size(Random& random, int64_t rows, int64_t groups, bool hostile) {
  if (hostile && random.chance(0.2))
    return random.pick({std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()});
  if (random.chance(0.2)) return 0;
  return static_cast<int32_t>(random.integer(hostile ? -rows : 0, 2 * rows / groups + 1));
}

int test_ragged_dot(Random& random) {
  const auto float_dtype = [&] { return random.pick({DType::kF32, DType::kF32, DType::kBF16, DType::kF16}); };
  const int64_t rows = random.integer(random.chance(0.05) ? 0 : 1, random.pick<int64_t>({3, 20, 70}));
  const int64_t depth = random.integer(random.chance(0.05) ? 0 : 1, random.pick<int64_t>({9, 40, 900}));
  const int64_t columns = random.integer(1, random.pick<int64_t>({3, 40, 600})), groups = random.integer(1, 6);
  Index batch;  // of small groups only: most of the time goes into making their elements
  for (int64_t rank = depth * columns > 20'000 ? 0 : random.pick<int64_t>({0, 0, 1, 2}); rank > 0; --rank)
    batch.push_back(random.integer(1, 3));
  const auto shape = [&](std::initializer_list<int64_t> last) {
    Index all = batch;
    all.insert(all.end(), last);
    return all;
  };
  const bool spoils = random.chance(0.5), hostile = random.chance(0.3);
  const auto operand = [&](const Index& of) {
    return spoils ? TypedOperand::dense(float_dtype(), of, random, 3) : TypedOperand::any(float_dtype(), of, random, 3);
  };
  std::vector<TypedOperand> inputs = {operand(shape({rows, depth})), operand(shape({groups, depth, columns})),
                                      TypedOperand::any(DType::kI32, shape({groups}), random)};
  for (size_t i = 0; i < inputs[2].buffer.size(); i += sizeof(int32_t)) {
    const int32_t size = random_size(random, rows, groups, hostile);
    std::memcpy(inputs[2].buffer.data() + i, &size, sizeof size);
  }
  // Which groups hold a row.
  const auto groups_of = [&](const Index& of_batch, int64_t row) {
    std::vector<int64_t> found;
    uint32_t end = 0;
    for (int64_t group = 0; group < groups; ++group) {
      Index at = of_batch;
      at.push_back(group);
      const auto begin = static_cast<int32_t>(end);
      end += static_cast<uint32_t>(static_cast<int32_t>(inputs[2].at(at)));
      if (begin <= row && row < static_cast<int32_t>(end)) found.push_back(group);
    }
    return found;
  };
  if (spoils) {
    Index of_batch(batch.size(), 0);
    do {
      std::vector<bool> read(static_cast<size_t>(groups), false);
      for (int64_t row = 0; row < rows; ++row) {
        const auto found = groups_of(of_batch, row);
        for (const int64_t group : found) read[static_cast<size_t>(group)] = true;
        Index at = of_batch;
        at.push_back(row);
        if (found.empty()) spoil(inputs[0], at);
      }
      for (int64_t group = 0; group < groups; ++group) {
        Index at = of_batch;
        at.push_back(group);
        if (!read[static_cast<size_t>(group)]) spoil(inputs[1], at);
      }
    } while (next(of_batch, Index(batch.size(), 0), batch));
  }
  const std::vector<double> left = values(inputs[0], shape({rows, depth}));
  const std::vector<double> right = values(inputs[1], shape({groups, depth, columns}));
  const DType dtype = float_dtype();
  return check_typed("ragged_dot", "ragged_dot", inputs, dtype, shape({rows, columns}), {0}, random,
                     [&](const Index& index, const std::byte* got) -> std::string {
                       const Index of_batch(index.begin(), index.end() - 2);
                       const int64_t row = index[index.size() - 2], column = index.back();
                       int64_t image = 0;
                       for (size_t axis = 0; axis < batch.size(); ++axis) image = image * batch[axis] + of_batch[axis];
                       double sum = 0;
                       for (const int64_t group : groups_of(of_batch, row)) {
                         const double* of_row = &left[static_cast<size_t>((image * rows + row) * depth)];
                         const double* of_group =
                             &right[static_cast<size_t>((image * groups + group) * depth * columns + column)];
                         for (int64_t k = 0; k < depth; ++k) sum += of_row[k] * of_group[k * columns];
                       }
                       const double wanted = is_half(dtype) ? half_value(dtype, half_bits(dtype, static_cast<float>(sum))) : sum;
                       return value_of(dtype, got) == wanted ? "" : differs(value_of(dtype, got), wanted);
                     });
}

}  // namespace

int main() {
  constexpr int kTimes = ASPEN_SMALL_TESTS ? 60 : 300;
  Random random(20261128);
  int failures = 0;
  for (int i = 0; i < kTimes; ++i) failures += test_ragged_dot(random);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
