// What the core asks of the Python interpreter, given to it as hooks by composition.cc.
#pragma once

#include <functional>
#include <string>

namespace tpu {

// "file:line" of the innermost Python frame that is neither torch's nor ours; "" without the interpreter lock or frame.
// Any thread.
std::string UserFrame();

// Runs `wait`, letting other Python threads run meanwhile if the caller holds the interpreter lock. Any thread.
void WaitWithoutInterpreterLock(const std::function<void()>& wait);

// Directories whose frames are not the user's. Called once at import, with the lock held.
void SetLibraryDirectories(std::string torch_directory, std::string own_directory);

}  // namespace tpu
