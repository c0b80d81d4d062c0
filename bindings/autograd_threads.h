// Autograd's device threads and the end of the process.
#pragma once

namespace tpu {

// Until the threads have dropped every task whose gradients their callers already have: dropping a task takes Python's
// lock, and a thread that asks for it after the interpreter has ended aborts the process. A thread in the midst of
// somebody else's backward is waited for till it takes its next task; those of reentrant backwards are not waited for.
// Called at exit, while there is an interpreter, without its lock.
void WaitForAutogradThreads();

}  // namespace tpu
