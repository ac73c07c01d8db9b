// Which cards are near a GPU, from a made-up tree of sysfs.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "check.h"
#include "wire/verbs/nearness.h"

using namespace gin::wire::verbs;
namespace fs = std::filesystem;

namespace {

// A folder that looks like /sys, gone with the object.
class Tree {
 public:
  Tree() {
    std::string pattern = (fs::temp_directory_path() / "gin-nearness-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~Tree() { fs::remove_all(root_); }

  std::string root() const { return root_.string(); }

  // A device at a path from its root complex on.
  void pci(const std::string& path, int node) {
    const fs::path folder = root_ / "devices" / path;
    fs::create_directories(folder);
    std::ofstream(folder / "numa_node") << node << '\n';
    link(folder, root_ / "bus/pci/devices" / folder.filename());
  }

  void nic(const std::string& name, const std::string& path, int node) {
    pci(path, node);
    link(root_ / "devices" / path, root_ / "class/infiniband" / name / "device");
  }

  void node(int number, const std::string& cpus) {
    const fs::path folder = root_ / "devices/system/node" / ("node" + std::to_string(number));
    fs::create_directories(folder);
    std::ofstream(folder / "cpulist") << cpus << '\n';
  }

 private:
  static void link(const fs::path& to, const fs::path& from) {
    fs::create_directories(from.parent_path());
    fs::create_directory_symlink(to, from);
  }

  fs::path root_;
};

// Two sockets. On the first, a switch with a GPU and two cards, and another with a GPU and one; on the second, one each
// below root ports of their own.
struct Server : Tree {
  Server() {
    pci("pci0000:00/0000:00:01.0/0000:10:00.0/0000:11:00.0", 0);
    nic("mlx5_0", "pci0000:00/0000:00:01.0/0000:10:00.0/0000:12:00.0", 0);
    nic("mlx5_1", "pci0000:00/0000:00:01.0/0000:10:00.0/0000:12:00.1", 0);
    pci("pci0000:00/0000:00:02.0/0000:20:00.0/0000:21:00.0", 0);
    nic("mlx5_2", "pci0000:00/0000:00:02.0/0000:20:00.0/0000:22:00.0", 0);
    pci("pci0000:80/0000:80:01.0/0000:81:00.0", 1);
    nic("mlx5_3", "pci0000:90/0000:90:01.0/0000:91:00.0", 1);
  }

  std::vector<Place> cards() const {
    std::vector<Place> all;
    for (const char* name : {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}) all.push_back(place_of_nic(root(), name));
    return all;
  }

  std::vector<Choice> choose_for(const std::string& bus_id, uint32_t local_rank, uint32_t count) const {
    return choose(cards(), place_of_gpu(root(), bus_id), "GPU " + bus_id, local_rank, count);
  }
};

}  // namespace

CASE(a_place_is_the_path_from_the_root_complex_on) {
  Server s;
  const Place card = place_of_nic(s.root(), "mlx5_3");
  CHECK_EQ(card.path.size(), size_t(3));
  CHECK_EQ(card.path[0], std::string("pci0000:90"));
  CHECK_EQ(card.node, 1);
  CHECK(place_of_gpu(s.root(), "0000:81:00.0").path.back() == "0000:81:00.0");
  CHECK(place_of_gpu(s.root(), "00000000:81:00.0").path.back() == "0000:81:00.0");  // as NVML and CUDA may write it
}

CASE(what_is_not_there_is_unknown) {
  Server s;
  for (const Place& place : {place_of_nic(s.root(), "rxe0"), place_of_gpu(s.root(), "0000:ff:00.0"),
                             place_of_gpu(s.root(), ""), place_of_gpu("/no/such/folder", "0000:81:00.0")}) {
    CHECK(place.path.empty());
    CHECK_EQ(place.node, -1);
    CHECK_EQ(nearness(place, place).bridges, 0u);
    CHECK(!nearness(place, place).same_node);
  }
}

CASE(the_card_behind_the_same_switch_comes_first) {
  Server s;
  const std::vector<Choice> chosen = s.choose_for("0000:21:00.0", 7, 1);
  CHECK_EQ(chosen.size(), size_t(1));
  CHECK_EQ(chosen[0].index, size_t(2));
  CHECK_CONTAINS(chosen[0].why, "shares 3 levels of PCIe with GPU 0000:21:00.0");
}

CASE(equally_near_cards_are_dealt_out_by_local_rank) {
  Server s;
  for (uint32_t rank : {0u, 1u, 2u, 3u}) {
    const std::vector<Choice> chosen = s.choose_for("0000:11:00.0", rank, 1);
    CHECK_EQ(chosen[0].index, size_t(rank % 2));
    CHECK_CONTAINS(chosen[0].why, "by local rank " + std::to_string(rank) + " among 2");
  }
}

CASE(the_numa_node_breaks_the_tie) {
  Server s;
  const std::vector<Choice> chosen = s.choose_for("0000:81:00.0", 0, 1);  // shares a bridge with no card
  CHECK_EQ(chosen[0].index, size_t(3));
  CHECK_CONTAINS(chosen[0].why, "NUMA node of GPU");
}

CASE(several_cards_are_the_nearest_ones) {
  Server s;
  const std::vector<Choice> two = s.choose_for("0000:11:00.0", 1, 2), all = s.choose_for("0000:11:00.0", 0, 9);
  CHECK_EQ(two.size(), size_t(2));
  CHECK(two[0].index + two[1].index == 1);
  CHECK_EQ(all.size(), size_t(4));
  CHECK_EQ(all[2].index, size_t(2));
  CHECK_EQ(all[3].index, size_t(3));
  CHECK_CONTAINS(all[3].why, "farther from GPU");
}

CASE(without_knowledge_it_is_by_local_rank) {
  const std::vector<Place> three(3);
  for (uint32_t rank : {0u, 1u, 2u, 5u}) {
    const std::vector<Choice> chosen = choose(three, {}, "this rank's CPUs", rank, 1);
    CHECK_EQ(chosen[0].index, size_t(rank % 3));
    CHECK_CONTAINS(chosen[0].why, "by local rank");
  }
  CHECK_EQ(choose(three, {}, "", 1, 2)[0].index, size_t(2));
  CHECK_EQ(choose(three, {}, "", 1, 2)[1].index, size_t(0));
  CHECK_EQ(choose({Place{}}, {}, "", 5, 1)[0].why, std::string("the only one"));
  CHECK(choose({}, {}, "", 0, 1).empty());
}

CASE(a_process_is_on_the_node_of_all_its_cpus) {
  Tree one, two, none;
  one.node(0, "1000-1001");
  one.node(1, "0-900");
  CHECK_EQ(place_of_cpus(one.root()).node, 1);
  two.node(0, "1000,1002-1003");
  CHECK_EQ(place_of_cpus(two.root()).node, -1);
  CHECK_EQ(place_of_cpus(none.root()).node, -1);
}

CHECK_MAIN
