// What the thread sanitizer is told to pass over in the tests, each with its reason.
extern "C" const char* __tsan_default_suppressions();
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  // libtbb is not instrumented: the hand-over of a task object, made by TBB's header code in one thread and run in
  // another, looks unordered. The order of a loop's start, pieces and end is told by Handshake (host/parallel.cc).
  return "race:tbb::detail\n"
         "race:libtbb.so\n";
}
