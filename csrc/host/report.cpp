// Where the threads of a launch stand, in words.
#include <map>
#include <set>

#include "scheduler.h"

namespace gin::host {

namespace {

std::string triple(Index3 v) {
  return "(" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

// "3", "0-31", "0-31,64"
std::string ranges(const std::vector<uint32_t>& sorted) {
  std::string out;
  for (size_t i = 0; i < sorted.size();) {
    size_t end = i;
    while (end + 1 < sorted.size() && sorted[end + 1] == sorted[end] + 1) ++end;
    if (!out.empty()) out += ",";
    out += std::to_string(sorted[i]);
    if (end > i) out += "-" + std::to_string(sorted[end]);
    i = end + 1;
  }
  return out;
}

std::string site(const Thread* t) {
  std::string text;
  int number = 0;
  for (const char* c = t->what; *c; ++c) {
    if (c[0] == '{' && c[1] == '}' && number < 2) {
      text += std::to_string(number++ == 0 ? t->value : t->detail);
      ++c;
    } else {
      text += *c;
    }
  }
  return text + " (" + t->file + ":" + std::to_string(t->line) + ")";
}

std::string mask_text(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

}  // namespace

std::string Scheduler::place(const Thread* t) const {
  return "block " + triple(t->block->index) + " thread " + triple(t->index);
}

// "block (0,0,0): threads 0-31 at __syncthreads (kernel.cu:12); threads 32-63 have ended", without the block's name, so
// that blocks that stand alike can share a line.
std::string Scheduler::block_report(const BlockState& block, const std::set<const Thread*>& runnable) const {
  std::set<const Thread*> at_barrier;
  uint32_t count = 0;
  for (const Thread* t = block.first; t && count < block.waiting; t = t->next, ++count) at_barrier.insert(t);
  std::map<std::string, std::vector<uint32_t>> groups;
  std::vector<std::string> order;
  auto add = [&](const std::string& what, uint32_t rank) {
    auto& ranks = groups[what];
    if (ranks.empty()) order.push_back(what);
    ranks.push_back(rank);
  };
  for (uint32_t rank = 0; rank < block.threads; ++rank) {
    const Warp& w = block.warps[rank / warp_size];
    const Thread* t = w.lanes[rank % warp_size];
    if (rank >= block.started) {
      add("have not started", rank);
    } else if (!t) {
      add("have ended", rank);
    } else if (at_barrier.count(t)) {
      add("at " + site(t), rank);
    } else if (t->what && t->polling) {
      add("waiting in " + site(t), rank);
    } else if (runnable.count(t)) {
      add("can run", rank);
    } else if (t == current_) {
      add("running", rank);
    } else if (t->what) {
      add("at " + std::string(t->what) + " for lanes " + mask_text(t->mask) + " (" + t->file + ":" +
              std::to_string(t->line) + ")",
          rank);
    } else {
      add("can run", rank);
    }
  }
  std::string out;
  for (const std::string& what : order) {
    const auto& ranks = groups[what];
    if (!out.empty()) out += "; ";
    if (ranks.size() == block.threads && ranks.size() > 1) {
      out += "all " + std::to_string(ranks.size()) + " threads " + what;
    } else {
      bool one = ranks.size() == 1;
      out += (one ? "thread " : "threads ") + ranges(ranks) + " ";
      out += one && what.rfind("have ", 0) == 0 ? "has " + what.substr(5) : what;
    }
  }
  return out;
}

std::string Scheduler::report() const {
  if (!launch_) return "no kernel is running";
  constexpr size_t most = 16;
  std::set<const Thread*> runnable;
  for (const Thread* t = head_; t; t = t->next) runnable.insert(t);
  for (uint32_t slot = 0; slot < ready_.size(); ++slot) {
    if (ready_[slot]) runnable.insert(arena_.thread(slot));
  }
  std::map<std::string, std::vector<const BlockState*>> groups;
  std::vector<std::string> order;
  for (const auto& block : resident_) {
    std::string text = block_report(*block, runnable);
    auto& blocks = groups[text];
    if (blocks.empty()) order.push_back(text);
    blocks.push_back(block.get());
  }
  std::string out = "kernel " + launch_->name + ", grid " + triple(launch_->grid) + ", block " + triple(launch_->block);
  size_t lines = 0;
  for (const std::string& text : order) {
    if (lines++ == most) {
      out += "\n  ... and " + std::to_string(order.size() - most) + " more groups of blocks";
      break;
    }
    const auto& blocks = groups[text];
    out += "\n  block " + triple(blocks[0]->index);
    if (blocks.size() > 1) out += " and " + std::to_string(blocks.size() - 1) + " more";
    out += ": " + text;
  }
  if (ended_blocks_) out += "\n  " + std::to_string(ended_blocks_) + " blocks have ended";
  if (next_block_ < blocks_) {
    out += "\n  " + std::to_string(blocks_ - next_block_) + " blocks have not started";
    if (!startable()) out += " (at most " + std::to_string(capacity_) + " threads are resident at once)";
  }
  return out;
}

}  // namespace gin::host
