#include "scheduler.h"

#include <cstring>

#include "../error.h"
#include "fault.h"
#include "module.h"

extern "C" void* __tls_get_addr(void*);

namespace gin::host {

namespace {

constexpr const char* unreachable_barrier = "a barrier that not all threads of the block reach";

// The next index in the order x, y, z.
void advance(Index3& index, const Index3& size) {
  if (++index.x < size.x) return;
  index.x = 0;
  if (++index.y < size.y) return;
  index.y = 0;
  ++index.z;
}

}  // namespace

const Services Scheduler::services_ = {
    .yield = [](Thread* t) { of(t).turn(t, true); },
    .pass = [](Thread* t) { of(t).turn(t, false); },
    .barrier =
        [](Thread* t, BarrierOp op, uint32_t value, const char* what, const char* file, uint32_t line) {
          t->what = what;
          t->file = file;
          t->line = line;
          uint32_t result = of(t).barrier(t, op, value);
          t->what = nullptr;
          return result;
        },
    .warp =
        [](Thread* t, WarpOp op, uint32_t mask, uint64_t value, uint32_t source, const char* what, const char* file,
           uint32_t line) {
          t->what = what;
          t->file = file;
          t->line = line;
          uint64_t result = of(t).warp(t, op, mask, value, source);
          t->what = nullptr;
          return result;
        },
    .fail =
        [](Thread* t, const char* what, const char* file, uint32_t line) {
          of(t).fail(t, std::string(what) + " (" + file + ":" + std::to_string(line) + ")");
          of(t).leave(t);
        },
    .clock_ns = [](Thread* t) { return of(t).hooks_.now_ns(); },
    .cycles = [](Thread* t) { return of(t).hooks_.cycles(); },
    .capture =
        [](Thread* t) {
          Scheduler& s = of(t);
          if (s.captured_.empty()) s.captured_ = s.report();
        },
    .tls_address = [](void* index) { return __tls_get_addr(index); },
    .note = [](Thread*, const Note&) {},
};

Scheduler::Scheduler(Hooks& hooks, uint32_t max_threads, bool stepped)
    : hooks_(hooks),
      capacity_(max_threads && max_threads < Arena::slots ? max_threads : Arena::slots),
      stepped_(stepped) {
  if (capacity_ < 1024) capacity_ = 1024;  // a block is always resident whole
#ifdef GIN_TSAN
  main_shadow_.fiber = __tsan_get_current_fiber();
#endif
}

Scheduler::~Scheduler() {
  if (launch_) stop();
  drop_images();
#ifdef GIN_TSAN
  for (Shadow& s : shadows_) {
    if (s.fiber) __tsan_destroy_fiber(s.fiber);
  }
#endif
}

void Scheduler::start(const Launch& launch) {
  if (launch_) throw Error(Error::Kind::internal, "a scheduler runs one launch at a time");
  launch.check();
  const Module& module = *launch.module;
  launch_ = &launch;
  try {
    dynamic_offset_ = find_dynamic();
  } catch (...) {
    launch_ = nullptr;
    throw;
  }
  call_ = module.entry().call;
  arguments_ = launch.arguments.pointers();
  uint64_t bytes = module.static_bytes() + launch.shared > 0 ? module.image_bytes() : 0;
  if (bytes != image_bytes_) {
    drop_images();
    image_bytes_ = bytes;
  }
  threads_per_block_ = launch.block.x * launch.block.y * launch.block.z;
  blocks_ = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
  next_block_ = ended_blocks_ = 0;
  next_index_ = {0, 0, 0};
  streak_ = round_ = passes_ = 0;
  passed_ = stopped_ = false;
  captured_.clear();
  failure_.clear();
  crash_ = {};
  error_ = nullptr;
}

bool Scheduler::resume() {
  FaultScope scope(*this);
#ifdef GIN_TSAN
  main_shadow_.fiber = __tsan_get_current_fiber();
#endif
  if (Thread* t = next()) enter(t);
  if (error_) {
    std::exception_ptr error = error_;
    reset();
    std::rethrow_exception(error);
  }
  if (stopped_) {
    std::string text = "kernel " + launch_->name + " was stopped before it ended\n" + report();
    reset();
    throw Error(Error::Kind::kernel, text);
  }
  if (failure_.empty() && head_) return false;
  if (failure_.empty() && ended_blocks_ < blocks_) {
    failure_ = "deadlock: no thread can go on";
    current_ = nullptr;
  }
  if (!failure_.empty()) throw_failure();
  launch_ = nullptr;
  current_ = nullptr;
  return true;
}

void Scheduler::throw_failure() {
  std::string text = "kernel " + launch_->name + ": " + failure_ + "\n" + report();
  reset();
  throw Error(Error::Kind::kernel, text);
}

void Scheduler::stop() { reset(); }

// Forgets the launch and everything that it left on stacks. What those frames own is lost, as nothing unwinds them.
void Scheduler::reset() {
  for (auto& block : resident_) {
    if (block->image) images_.push_back(block->image);
    spare_.push_back(std::move(block));
  }
  resident_.clear();
  resident_threads_ = 0;
  partial_ = nullptr;
  head_ = tail_ = current_ = nullptr;
  queued_ = 0;
  ready_.assign(ready_.size(), 0);
  free_ = nullptr;
  for (uint32_t slot = arena_.used(); slot-- > 0;) {
    Thread* t = arena_.thread(slot);
    t->stack = nullptr;
    t->next = free_;
    free_ = t;
  }
  launch_ = nullptr;
}

// ---- turns, barriers, failure

bool Scheduler::must_stop() {
  if (!interrupted_.load(std::memory_order_relaxed)) return false;
  interrupted_.store(false, std::memory_order_relaxed);
  stopped_ = hooks_.interrupted(*this);
  return stopped_;
}

void Scheduler::turn(Thread* t, bool polls) {
  t->atomics = 0;
  if (t->fresh) {
    t->fresh = 0;
    round_ = 0;
  }
  passed_ = passed_ || !polls;
  if (must_stop()) leave(t);
  if (++streak_ > queued_ && !partial_) {
    // Every thread had its turn without getting on.
    streak_ = 0;
    if (startable()) {
      start_block();
    } else if (passed_) {
      passed_ = false;
      hooks_.pass(passes_++);
    } else if (hooks_.idle(round_++)) {
      push(t);
      leave(t);
      return;
    }
  }
  if (!head_ && !partial_) return;
  push(t);
  suspend(t);
}

uint32_t Scheduler::barrier(Thread* t, BarrierOp op, uint32_t value) {
  auto& b = *static_cast<BlockState*>(t->block);
  t->op = uint32_t(op);
  streak_ = 0;
  if (!b.waiting) {
    b.sum = 0;
    b.mixed = false;
  } else if (const Thread* f = b.first;
             f->line != t->line || f->op != t->op || (f->file != t->file && std::strcmp(f->file, t->file) != 0)) {
    b.mixed = true;
  }
  b.sum += value;
  ++b.waiting;
  bool last = b.waiting + b.ended == b.threads;
  if (!last || b.ended || b.mixed) {
    t->next = nullptr;
    if (b.waiting == 1) {
      b.first = t;
    } else {
      b.last->next = t;
    }
    b.last = t;
    if (last) {
      fail(t, b.ended ? unreachable_barrier : "threads of one block wait at different barriers");
      leave(t);
    }
    suspend(t);
    return b.result;
  }
  b.result = op == BarrierOp::count ? b.sum : op == BarrierOp::all ? b.sum == b.threads : b.sum != 0;
  // The others join the run queue in the order of their arrival; this thread, the last, goes on.
  if (b.waiting > 1) append(b.first, b.last, b.waiting - 1);
  b.first = b.last = nullptr;
  b.waiting = 0;
  if (must_stop()) leave(t);
  return b.result;
}

// To be followed by leave(t), in a statement of its own: frames that are left for good must own nothing.
void Scheduler::fail(const Thread* t, const std::string& what) { failure_ = what + ", in " + place(t); }

// ---- blocks and threads

void Scheduler::start_block() noexcept {
  try {
    if (spare_.empty()) spare_.push_back(std::make_unique<BlockState>());
    BlockState& b = *spare_.back();
    const Launch& l = *launch_;
    uint32_t warps = (threads_per_block_ + warp_size - 1) / warp_size;
    if (b.warp_count < warps) {
      b.warps = std::make_unique_for_overwrite<Warp[]>(warps);
      b.warp_count = warps;
    }
    b.image = image_bytes_ ? take_image() : nullptr;
    b.index = next_index_;
    b.size = l.block;
    b.grid = l.grid;
    b.shared_bytes = l.shared;
    b.library = l.library;
    b.threads = threads_per_block_;
    b.started = b.ended = b.waiting = 0;
    b.first = b.last = nullptr;
    b.cursor = {0, 0, 0};
    for (uint32_t i = 0; i < warps; ++i) {
      uint32_t lanes = b.threads - i * warp_size;
      b.warps[i].gone = lanes < warp_size ? ~0u << lanes : 0;
      b.warps[i].groups = 0;
      std::memset(b.warps[i].lanes, 0, sizeof b.warps[i].lanes);
    }
    b.stalled = 0;
    b.position = resident_.size();
    resident_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    partial_ = &b;
    resident_threads_ += b.threads;
    ++next_block_;
    advance(next_index_, l.grid);
    streak_ = 0;
  } catch (...) {
    error_ = std::current_exception();
  }
}

void Scheduler::end_block(BlockState& b) {
  if (b.image) images_.push_back(b.image);
  resident_threads_ -= b.threads;
  ++ended_blocks_;
  size_t position = b.position;
  spare_.push_back(std::move(resident_[position]));
  if (position + 1 < resident_.size()) {
    resident_[position] = std::move(resident_.back());
    resident_[position]->position = position;
  }
  resident_.pop_back();
}

// Takes a stack, and the next thread of the block that is being started.
Thread* Scheduler::start_thread() {
  Thread* t = take_stack();
  if (!t->stack) {
    prepare_stack(t, [](void* thread) { of(static_cast<Thread*>(thread)).run_fiber(static_cast<Thread*>(thread)); });
  }
  assign(t);
  return t;
}

Thread* Scheduler::take_stack() {
  if (!free_) {
    shadows_.emplace_back();
    arena_.grow();
    Thread* t = arena_.thread(arena_.used() - 1);
    t->services = stepped_ ? &stepped_services_ : &services_;
    t->scheduler = this;
    t->stack = nullptr;
    return t;
  }
  Thread* t = free_;
  free_ = t->next;
  return t;
}

void Scheduler::prepare_stack(Thread* t, void (*entry)(void*)) {
  uint32_t slot = arena_.slot(t);
  t->stack = make_context(arena_.stack_top(slot), entry, t);
#if defined(GIN_ASAN) || defined(GIN_TSAN)
  Shadow& s = shadows_[slot];
#endif
#ifdef GIN_ASAN
  s = {nullptr, arena_.stack_bottom(slot), stack_bytes};
  // Frames that were left without returning are still marked.
  ASAN_UNPOISON_MEMORY_REGION(arena_.stack_bottom(slot) + 4096, stack_bytes - 4096);
#endif
#ifdef GIN_TSAN
  if (s.fiber) __tsan_destroy_fiber(s.fiber);
  s.fiber = __tsan_create_fiber(0);
#endif
}

void Scheduler::assign(Thread* t) {
  BlockState& b = *partial_;
  t->index = b.cursor;
  t->rank = b.started++;
  t->block = &b;
  t->shared = b.image;
  t->what = nullptr;
  t->call = nullptr;
  t->atomics = 0;
  t->fresh = t->polling = 0;
  b.warps[t->rank / warp_size].lanes[t->rank % warp_size] = t;
  advance(b.cursor, b.size);
  if (b.started == b.threads) partial_ = nullptr;
  streak_ = 0;
}

void Scheduler::run_fiber(Thread* t) {
  shadow(t).arrive(*previous_);
  for (;;) {
    call_(arguments_);
    finish(t);
  }
}

// Ends the thread. Returns when its stack has been given to another.
void Scheduler::finish(Thread* t) {
  auto& b = *static_cast<BlockState*>(t->block);
  ++b.ended;
  streak_ = 0;
  lane_ended(b.warps[t->rank / warp_size], t->rank % warp_size);
  if (b.ended == b.threads) {
    end_block(b);
  } else if (b.waiting && b.waiting + b.ended == b.threads) {
    fail(b.first, unreachable_barrier);
    leave(t);
  }
  if (stepped_) {
    step_ = Step::ended;
    t->next = free_;
    free_ = t;
    leave(t);
    return;
  }
  if (must_stop()) leave(t);
  if (!partial_ && !head_ && startable()) start_block();
  if (partial_ && !error_) {
    assign(t);
    return;
  }
  Thread* n = error_ ? nullptr : pop();
  t->next = free_;
  free_ = t;
  if (n) {
    transfer(t, n);
  } else {
    leave(t);
  }
}

// ---- switching

void Scheduler::append(Thread* first, Thread* last, uint32_t count) {
  last->next = nullptr;
  if (tail_) {
    tail_->next = first;
  } else {
    head_ = first;
  }
  tail_ = last;
  queued_ += count;
}

void Scheduler::push(Thread* t) { append(t, t, 1); }

Thread* Scheduler::pop() {
  Thread* t = head_;
  if (!t) return nullptr;
  head_ = t->next;
  if (!head_) tail_ = nullptr;
  --queued_;
  return t;
}

// Whose turn it is; nullptr when no thread can go on, or after an error.
Thread* Scheduler::next() noexcept {
  if (error_) return nullptr;
  if (!partial_) {
    if (Thread* t = pop()) return t;
    if (!startable()) return nullptr;
    start_block();
    if (error_) return nullptr;
  }
  try {
    return start_thread();
  } catch (...) {
    error_ = std::current_exception();
    return nullptr;
  }
}

void Scheduler::suspend(Thread* t) {
  if (stepped_) {
    step_ = Step::blocked;
    leave(t);
    return;
  }
  Thread* n = next();
  if (!n) {
    leave(t);
  } else if (n != t) {
    transfer(t, n);
  }
}

void Scheduler::transfer(Thread* from, Thread* to) {
  current_ = to;
  Shadow& own = shadow(from);
  previous_ = &own;
  own.leave(shadow(to));
  gin_host_switch(&from->stack, to->stack);
  shadow(from).arrive(*previous_);
}

// To the caller of resume(). Returns only if this thread is run again.
void Scheduler::leave(Thread* from) {
  Shadow& own = shadow(from);
  previous_ = &own;
  own.leave(main_shadow_);
  gin_host_switch(&from->stack, main_stack_);
  shadow(from).arrive(*previous_);
}

void Scheduler::enter(Thread* to) {
  current_ = to;
  previous_ = &main_shadow_;
  main_shadow_.leave(shadow(to));
  gin_host_switch(&main_stack_, to->stack);
  main_shadow_.arrive(*previous_);
}

}  // namespace gin::host
