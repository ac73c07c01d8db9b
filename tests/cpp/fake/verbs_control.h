// What tests ask of the pretended libibverbs; found in it by dlsym.
#pragma once

#include <cstdint>

extern "C" {

// A property of the devices or of how they move data; verbs.h lists them. Those of the devices are for before they are opened.
void fake_set(const char* name, int64_t value);
// Every property as FAKE_VERBS says, or as it is listed; no fault any more.
void fake_reset(uint32_t seed);

// One call of a function fails, after `skipped` that do not; of ibv_post_send work requests are counted. `fake_failed`: whether
// it has come to that.
void fake_fail(const char* function, int64_t skipped, int error);
int fake_failed();

// The next work request of the queue pair that is sent ends with this status. Nobody answers what a queue pair sends.
void fake_end(uint32_t queue_pair, int status, uint32_t vendor_error);
void fake_silence(uint32_t queue_pair);

// Objects of one kind that are live, as "queue_pairs"; of every kind: "all". "overruns" of completion queues,
// "completions" that nobody has polled, work requests "under_way".
int64_t fake_count(const char* what);
}
