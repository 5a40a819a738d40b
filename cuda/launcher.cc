#include "launcher.h"

namespace aspen::cuda {
namespace {

const char* give(const Command& command, Launcher& launcher) noexcept {
  switch (command.kind) {
    case Command::Kind::kLaunch:
      return launcher.launch(command.stream, command.index);
    case Command::Kind::kRecord:
      return launcher.record(command.stream, command.index);
    case Command::Kind::kWait:
      return launcher.wait(command.stream, command.index);
  }
  return "the schedule holds a command of no kind";
}

}  // namespace

Issued issue(const Schedule& schedule, Launcher& launcher) noexcept {
  Issued issued;
  for (uint32_t i = 0; i < schedule.commands.size(); ++i) {
    if (issued.error != nullptr && schedule.commands[i].kind == Command::Kind::kLaunch) continue;
    const char* const error = give(schedule.commands[i], launcher);
    if (error != nullptr && issued.error == nullptr) issued = {error, i};
  }
  return issued;
}

}  // namespace aspen::cuda
