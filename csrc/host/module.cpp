#include "module.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "../error.h"
#include "launch.h"

namespace gin::host {

namespace {

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string place(Index3 v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

}  // namespace

Module::Module(const std::string& path) : path_(path), handle_(nullptr, dlclose) {
  if (access(path.c_str(), R_OK) != 0) {
    throw Error(Error::Kind::config, "compiled kernel " + path + ": " + std::strerror(errno) + "; compile it again");
  }
  // Without a slash dlopen would search the library path.
  handle_.reset(dlopen((path.find('/') == std::string::npos ? "./" + path : path).c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!handle_) {
    const char* why = dlerror();
    throw Error(Error::Kind::compile, "compiled kernel " + path + " does not load: " + (why ? why : "no reason given") +
                                          "; an undefined symbol is a function that the host platform does not have");
  }
  entry_ = static_cast<const Entry*>(dlsym(handle_.get(), "gin_host_entry"));
  if (!entry_) {
    throw Error(Error::Kind::compile, "compiled kernel " + path + " has no gin_host_entry; it was not compiled by gin");
  }
  if (entry_->stamp != abi_stamp) {
    throw Error(Error::Kind::unsupported, "compiled kernel " + path + " has ABI stamp " + hex(entry_->stamp) +
                                              ", this gin runs " + hex(abi_stamp) +
                                              "; remove the file so that it is compiled again");
  }
  find_image();
}

Module::~Module() = default;

void Module::find_image() {
  link_map* map = nullptr;
  size_t tls_module = 0;
  if (dlinfo(handle_.get(), RTLD_DI_LINKMAP, &map) != 0 || dlinfo(handle_.get(), RTLD_DI_TLS_MODID, &tls_module) != 0) {
    throw Error(Error::Kind::internal, "compiled kernel " + path_ + ": dlinfo failed");
  }
  struct Search {
    uintptr_t base;
    const ElfW(Phdr) * tls;
    const ElfW(Phdr) * code;
  } search{map->l_addr, nullptr, nullptr};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* s = static_cast<Search*>(data);
        if (info->dlpi_addr != s->base) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) & header = info->dlpi_phdr[i];
          if (header.p_type == PT_TLS) s->tls = &header;
          if (header.p_type == PT_LOAD && (header.p_flags & PF_X)) s->code = &header;
        }
        return 1;
      },
      &search);
  if (!search.tls || search.tls->p_memsz < dynamic_placeholder || tls_module == 0) {
    throw Error(Error::Kind::compile, "compiled kernel " + path_ + " has no image of shared memory; compile it again");
  }
  if (search.tls->p_filesz != 0) {
    throw Error(
        Error::Kind::compile,
        "compiled kernel " + path_ +
            ": a __shared__ variable has an initialiser; shared memory starts undefined: assign it in the kernel");
  }
  if (search.tls->p_align > 4096) {
    throw Error(Error::Kind::compile, "compiled kernel " + path_ + ": a __shared__ variable is aligned to " +
                                          std::to_string(search.tls->p_align) + " bytes; at most 4096 are supported");
  }
  image_bytes_ = search.tls->p_memsz;
  base_ = search.base;
  if (search.code) {
    code_begin_ = base_ + search.code->p_vaddr;
    code_end_ = code_begin_ + search.code->p_memsz;
  }
  *entry_->tls_module = tls_module;
}

void Arguments::Free::operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t(64)); }

Arguments::Arguments(const Module& module, const std::vector<std::string>& bytes) {
  auto params = module.params();
  if (bytes.size() != params.size()) {
    throw Error(Error::Kind::argument, std::string("kernel ") + module.entry().name + " takes " +
                                           std::to_string(params.size()) + " arguments, not " +
                                           std::to_string(bytes.size()));
  }
  uint64_t total = 0;
  std::vector<uint64_t> offsets;
  for (size_t i = 0; i < params.size(); ++i) {
    if (bytes[i].size() != params[i].size) {
      throw Error(Error::Kind::argument, std::string("argument ") + std::to_string(i) + " of kernel " +
                                             module.entry().name + " has " + std::to_string(params[i].size) +
                                             " bytes, not " + std::to_string(bytes[i].size()));
    }
    total = (total + params[i].align - 1) / params[i].align * params[i].align;
    offsets.push_back(total);
    total += params[i].size;
  }
  storage_.reset(static_cast<std::byte*>(::operator new[](total + 1, std::align_val_t(64))));
  for (size_t i = 0; i < params.size(); ++i) {
    std::memcpy(storage_.get() + offsets[i], bytes[i].data(), bytes[i].size());
    pointers_.push_back(storage_.get() + offsets[i]);
  }
  pointers_.push_back(nullptr);
}

void Launch::check() const {
  auto refuse = [&](const std::string& why) {
    throw Error(Error::Kind::argument, "launch of kernel " + name + ": " + why);
  };
  if (!module) refuse("no module");
  uint64_t threads = uint64_t(block.x) * block.y * block.z;
  if (!block.x || !block.y || !block.z || block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024) {
    refuse("block " + place(block) + " is not between 1 and 1024 threads, with at most 1024, 1024, 64 per dimension");
  }
  if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    refuse("grid " + place(grid) + " is not between 1 and 2147483647, 65535, 65535 blocks");
  }
  uint64_t fixed = module->static_bytes();
  if (fixed + shared > shared_limit) {
    refuse("a block needs " + std::to_string(fixed) + " bytes of static and " + std::to_string(shared) +
           " bytes of dynamic shared memory; there are " + std::to_string(shared_limit));
  }
}

}  // namespace gin::host
