// Groups of calls on the calling thread, and launching them.
#pragma once

#include "enqueue/plan.h"

namespace ringstep {

void group_start();
// Ends the innermost group; the outermost decides, and runs unless simulating. Throws Error.
void group_end(bool simulate);

// Adds a call to the thread's group, which is one of its own where none is open.
void enqueue(Task task);
// A call in an open group was wrong: the group will not run, as in NCCL.
void spoil_group(const Error& error);
// Forgets what the thread's open group has for a communicator that ends.
void forget(const re_comm* comm);

}  // namespace ringstep
