// A graph that is ready to run, with the memory of its constants and weights: what an aspen_graph is.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "aspen_jax/engine/arena.h"
#include "aspen_jax/engine/plan.h"
#include "source.h"

namespace aspen {

class Model {
 public:
  // Reads what TileGraph.save wrote. Throws GraphError, FileError, IoError and std::bad_alloc.
  explicit Model(const Source& file);

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  // The operands without the constants.
  size_t num_inputs() const { return num_inputs_; }
  size_t num_outputs() const { return plan_->num_results(); }
  // nullptr where the graph has no names.
  const std::string* input_name(size_t index) const;
  const std::string* output_name(size_t index) const;

  // Each tensor of a safetensors file becomes the weight of the input of its name; all of them, or none where this throws:
  // std::invalid_argument where a tensor fits no input, and what the constructor throws.
  void load_weights(const Source& file);

  // What a run reads of the model's own memory. Whoever holds it may outlive the model and its next weights.
  struct Memory {
    // The bytes of each operand of the plan. Null where the caller has to bring an input.
    std::vector<const std::byte*> operands;
    std::vector<std::shared_ptr<const Arena>> owners;
  };
  const std::shared_ptr<const Memory>& memory() const { return memory_; }

 private:
  std::shared_ptr<const Plan> plan_;
  size_t num_inputs_ = 0;
  std::shared_ptr<const Memory> memory_;
};

}  // namespace aspen
