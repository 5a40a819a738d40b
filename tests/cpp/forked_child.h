// What sanitizers have to know of a program that forks. For the whole program whose one source includes this.
#pragma once

// A forked child of a process with threads may start threads of its own: ThreadSanitizer would end it.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

// The child sets this. LeakSanitizer cannot know that it leaves alone what the threads of its parent hold.
static bool is_forked_child = false;
extern "C" int __lsan_is_turned_off() { return is_forked_child; }
