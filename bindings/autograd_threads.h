// Autograd's device threads and the end of the process.
#pragma once

namespace tpu {

// Until the threads have dropped every task whose gradients their callers already have: dropping a task takes Python's
// lock, and a thread that asks for it after the interpreter has ended aborts the process. Called at exit, while there
// is an interpreter, without its lock.
void WaitForAutogradThreads();

}  // namespace tpu
