// What a SpecReader refuses, and how it says so.
#include "cpu/spec_reader.h"

#include <vector>

#include "engine_check.h"
#include "kernel_case.h"

namespace aspen::cpu::testing {
namespace {

// An op with two inputs, float32[2,3] and the int32 scalar, and an output of float32[2,3].
struct Example {
  std::vector<TensorView> inputs = {dense_view({2, 3}), dense_view({}, DType::kI32)};
  TensorView output = dense_view({2, 3});
  std::vector<int64_t> words;

  SpecReader reader() const { return SpecReader(OpSpec{inputs, output, words}); }
};

TEST(words_come_in_their_order) {
  const Example op{.words = {7, 1, 2, -3, 4, 11, 0}};
  SpecReader reader = op.reader();
  CHECK_EQ(reader.integer(), 7);
  CHECK(reader.flag("the flag"));
  const auto list = reader.list(2, -4, 4, "the list");
  CHECK_EQ(list[0], -3);
  CHECK_EQ(list[1], 4);
  CHECK(reader.dtype("the dtype") == DType::kF32);
  reader.end_without_program();
  reader.end();
}

TEST(a_word_out_of_its_range_is_named) {
  CHECK_THROWS(Example{.words = {5}}.reader().integer(0, 4, "the kind"), "the kind is 5, outside [0, 4]");
  CHECK_THROWS(Example{.words = {-1}}.reader().integer(0, 4, "the kind"), "the kind is -1, outside [0, 4]");
  CHECK_THROWS(Example{.words = {2}}.reader().flag("the flag"), "the flag is 2, outside [0, 1]");
  CHECK_THROWS(Example{.words = {13}}.reader().dtype("the dtype"), "the dtype is 13, outside [0, 12]");
  CHECK_THROWS((Example{.words = {2, 0, 9}}.reader().list(2, 0, 8, "pads")), "pads[1] is 9, outside [0, 8]");
}

TEST(a_list_of_another_length_is_refused) {
  CHECK_THROWS((Example{.words = {1, 4}}.reader().list(2, "pads")), "pads has 1 entries, where 2 are needed");
  CHECK_THROWS(Example{.words = {-1}}.reader().list(), "cut short");
  CHECK_THROWS((Example{.words = {3, 1, 2}}.reader().list()), "cut short");
  CHECK_THROWS((Example{.words = {INT64_MAX, 1}}.reader().list()), "cut short");
  CHECK_THROWS(Example{}.reader().integer(), "end early");
}

TEST(axes_ascend_and_exist) {
  const Example op{.words = {2, 0, 2}};
  CHECK_EQ(op.reader().axes(3, "axes").size(), size_t{2});
  CHECK_THROWS(op.reader().axes(2, "axes"), "an axis in axes is 2, outside [1, 1]");
  CHECK_THROWS((Example{.words = {2, 1, 1}}.reader().axes(3, "axes")), "an axis in axes is 1, outside [2, 2]");
  CHECK_THROWS((Example{.words = {2, 1, 0}}.reader().axes(3, "axes")), "an axis in axes is 0, outside [2, 2]");
  CHECK_THROWS((Example{.words = {1, -1}}.reader().axes(3, "axes")), "an axis in axes is -1, outside [0, 2]");
}

TEST(words_left_over_and_programs_are_refused) {
  CHECK_THROWS((Example{.words = {1, 2}}.reader().end()), "2 words follow");
  CHECK_THROWS((Example{.words = {1, 0}}.reader().end_without_program()), "its kernel takes none");
  CHECK_THROWS((Example{.words = {0, 0}}.reader().end_without_program()), "1 words follow");
  CHECK_THROWS(Example{}.reader().end_without_program(), "end early");
}

TEST(an_input_is_what_is_wanted) {
  const Example op;
  const SpecReader reader = op.reader();
  CHECK(&reader.input(0, "x", {.rank = 2, .dtypes = kFloats, .dense = true, .adjacent = true}) == &op.inputs[0]);
  CHECK(&reader.output({.rank = {1, 2}}) == &op.output);
  CHECK_THROWS(reader.input(0, "x", {.rank = 3}), "x has rank 2, where 3 is needed");
  CHECK_THROWS(reader.input(0, "x", {.rank = {3, 4}}), "x has rank 2, where 3 to 4 are needed");
  CHECK_THROWS(reader.input(1, "n", {.dtypes = kFloats}), "n is int32, where float16 or bfloat16 or float32 is needed");
  CHECK_THROWS(reader.output({.dtypes = DType::kU8}), "the output is float32, where uint8 is needed");
}

TEST(inputs_are_counted) {
  const Example op;
  op.reader().end_inputs(2);
  CHECK_THROWS(op.reader().end_inputs(1), "the op has 2 inputs, where 1 are needed");
  CHECK_THROWS(op.reader().end_inputs(3), "the op has 2 inputs, where 3 are needed");
  CHECK_THROWS(op.reader().input(2, "the scale", {}), "the op has 2 inputs, where input 2, the scale, is needed");
  CHECK_EQ(op.reader().inputs_from(1).size(), size_t{1});
  CHECK_EQ(op.reader().inputs_from(3).size(), size_t{0});
}

TEST(how_elements_lie_is_checked) {
  TensorView turned = dense_view({2, 3});
  turned.strides[0] = 1;
  turned.strides[1] = 2;
  CHECK_THROWS(check_view(turned, "x", {.dense = true}), "x is not dense and row-major; copy it first");
  CHECK_THROWS(check_view(turned, "x", {.adjacent = true}), "x has a stride of 2 along its last axis, where 1 is needed");
  turned.shape[0] = 0;  // of no element nothing is asked
  check_view(turned, "x", {.adjacent = true});
  turned.shape[0] = 2;
  turned.shape[1] = 1;
  check_view(turned, "x", {.dense = true, .adjacent = true});
  check_view(dense_view({}), "x", {.dense = true, .adjacent = true});
}

TEST(extents_are_those_of_boxes) {
  TensorView long_one = dense_view({2, 3});
  long_one.shape[1] = kMaxExtent;
  check_view(long_one, "x", {});
  long_one.shape[1] = kMaxExtent + 1;
  CHECK_THROWS(check_view(long_one, "x", {}), "x, [2, 2147483648], has an extent that is 2147483648, outside [0, 2147483647]");
}

TEST(shapes_are_compared) {
  const TensorView view = dense_view({2, 3});
  check_shape(view, "x", {2, 3});
  check_extent(view, "x", 1, 3);
  CHECK_THROWS(check_shape(view, "x", {2, 4}), "x has shape [2, 3], where [2, 4] is needed");
  CHECK_THROWS(check_shape(view, "x", {2, 3, 1}), "x has shape [2, 3], where [2, 3, 1] is needed");
  CHECK_THROWS(check_extent(view, "x", 0, 3), "x has shape [2, 3], where an extent of 3 along axis 0 is needed");
}

TEST(other_views_go_on_with_the_words) {
  const Example op{.words = {1, 2}};
  SpecReader reader = op.reader();
  CHECK_EQ(reader.integer(), 1);
  const std::vector<TensorView> inputs = {dense_view({4})};
  const TensorView output = dense_view({5});
  SpecReader other = reader.with_views(inputs, output);
  CHECK_EQ(other.integer(), 2);
  CHECK(&other.input(0, "x", {}) == inputs.data());
  CHECK(&other.output() == &output);
}

TEST(an_error_of_a_part_says_which) {
  const Example op{.words = {0}};
  const auto prepare = [](const OpSpec& spec) -> PreparedOp {
    SpecReader(spec).integer(1, 2, "the kind");
    return {};
  };
  CHECK_THROWS(prepare_part("the second part", prepare, OpSpec{op.inputs, op.output, op.words}),
               "the second part: the kind is 0, outside [1, 2]");
}

TEST(windows_are_counted) {
  CHECK_EQ(num_windows(7, 3, 2), 3);
  CHECK_EQ(num_windows(3, 3, 5), 1);
  CHECK_EQ(num_windows(2, 3, 1), 0);
  CHECK_EQ(num_windows(-4, 1, 1), 0);
}

}  // namespace
}  // namespace aspen::cpu::testing

int main(int argc, char** argv) { return aspen::testing::run_tests(argc, argv); }
