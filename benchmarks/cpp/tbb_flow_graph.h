// A task graph in oneTBB's flow graph: a continue_node for each task, as its documentation says dependency graphs are made.
#pragma once

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/task_arena.h>

#include <deque>
#include <memory>

#include "tests/cpp/dag.h"

namespace aspen {

class TbbFlowGraph {
 public:
  // Calls task(context, number) for each task.
  TbbFlowGraph(const testing::Dag& dag, int threads, void (*task)(void*, size_t), void* context) : arena_(threads) {
    arena_.execute([&] {  // a graph keeps to the arena that it was made in
      graph_ = std::make_unique<tbb::flow::graph>();
      for (size_t i = 0; i < dag.size(); ++i) {
        Node& node = nodes_.emplace_back(*graph_, [=](const Message&) { task(context, i); });
        if (dag.parents[i].empty()) roots_.push_back(&node);
        for (const int32_t parent : dag.parents[i]) tbb::flow::make_edge(nodes_[static_cast<size_t>(parent)], node);
      }
    });
  }

  void run() {
    arena_.execute([&] {
      for (Node* root : roots_) root->try_put(Message());
      graph_->wait_for_all();
    });
  }

 private:
  using Message = tbb::flow::continue_msg;
  using Node = tbb::flow::continue_node<Message>;

  tbb::task_arena arena_;
  std::unique_ptr<tbb::flow::graph> graph_;
  std::deque<Node> nodes_;
  std::vector<Node*> roots_;
};

}  // namespace aspen
