#include "exchange/mending.h"

#include <algorithm>

namespace coppice {

static constexpr int kMostLevels = 3;
static constexpr std::int64_t kFewSearches = 100, kMostSearches = 6400;  // for one terminal

Mending::Mending(Bundles& bundles, std::int32_t most_height, std::int64_t work)
    : bundles_(bundles),
      graph_(bundles.graph()),
      most_height_(most_height),
      users_(graph_.num_arcs()),
      work_left_(work),
      failed_(graph_.num_arcs(), 0),
      seen_(graph_.num_vertices(), 0),
      done_(graph_.num_vertices(), 0),
      full_of_(graph_.num_vertices(), 0),
      next_(graph_.num_vertices(), -1),
      below_(bundles.terminals().size(), 0) {
  for (std::int32_t b = 0; b < bundles.size(); ++b) {
    for (Vertex v : bundles.terminals()) {
      const std::int32_t i = bundles.index(v);
      if (bundles[b].depth[i] < 0) missing_.push_back({b, v});
      if (bundles[b].via[i] >= 0) note_use({b, v}, bundles[b].via[i]);
    }
  }
}

bool Mending::mend(std::int32_t last_height, const StopFlag& stop) {
  int levels = 1;
  std::int64_t searches = kFewSearches;
  while (!missing_.empty()) {
    const std::size_t before = missing_.size();
    still_missing_.clear();
    for (const Place& at : missing_) {
      poll(stop);
      if (work_left_ < 0) return false;
      searches_left_ = searches;
      ++attempt_;
      journal_.clear();
      if (place(at, levels)) continue;
      still_missing_.push_back(at);
      // A part of the bundle may fit where the whole does not; growth has halved all others already.
      if (may_split_ && bundles_[at.bundle].weight > 1) split(at.bundle, bundles_[at.bundle].weight / 2);
    }
    missing_.swap(still_missing_);
    if (10 * missing_.size() < 9 * before) continue;
    if (searches < kMostSearches) {
      searches *= 4;
      levels = std::min(levels + 1, kMostLevels);
    } else if (!may_split_) {
      may_split_ = true;
      searches = kFewSearches, levels = 1;
    } else if (most_height_ < last_height) {
      ++most_height_;
      searches = kFewSearches, levels = 1;
    } else {
      return false;
    }
  }
  return true;
}

// A path backwards from the place to a vertex of its tree over arcs with room for `amount`; kNone where there is none.
// `over_full`: receives paths with up to `most_full` arcs without room, those with fewer first.
std::int32_t Mending::search(Place at, Amount amount, int most_full, std::vector<std::int32_t>* over_full) {
  --searches_left_;
  const Bundle& tree = bundles_[at.bundle];
  std::int32_t height = 0;  // of the subtree
  const auto& subtree = bundles_.subtree(tree, at.v);
  if (tree.children[bundles_.index(at.v)] > 0) work_left_ -= static_cast<std::int64_t>(below_.size());
  for (std::int32_t j : subtree) {
    below_[j] = 1;
    if (tree.depth[j] >= 0) height = std::max(height, tree.depth[j] - tree.depth[subtree.front()]);
  }
  const std::int32_t deepest = most_height_ - height - 1;
  ++stamp_;
  for (int full = 0; full <= most_full; ++full) layer_[full].clear();
  layer_[0].push_back(at.v);
  seen_[at.v] = stamp_;
  next_[at.v] = -1;
  std::int32_t found = kNone;
  const auto enough = [&] { return over_full && static_cast<std::int64_t>(over_full->size()) >= searches_left_; };
  for (int full = 0; full <= most_full && found < 0; ++full) {
    for (std::size_t k = 0; k < layer_[full].size() && found < 0 && !(full > 0 && enough()); ++k) {
      const Vertex y = layer_[full][k];
      if (done_[y] == stamp_) continue;  // with fewer full arcs
      done_[y] = stamp_;
      for (Arc e : graph_.in(y)) {
        --work_left_;
        const Vertex from = graph_.tail(e);
        const int full_here = full + (bundles_.residual(e) < amount);
        if (full_here > most_full || bundles_.capacity(e) < amount) continue;
        if (!bundles_.is_terminal(from)) {
          if (done_[from] == stamp_ || (seen_[from] == stamp_ && full_of_[from] <= full_here)) continue;
          seen_[from] = stamp_;
          full_of_[from] = full_here;
          next_[from] = e;
          layer_[full_here].push_back(from);
          continue;
        }
        const std::int32_t j = bundles_.index(from);
        if (tree.depth[j] < 0 || tree.depth[j] > deepest || below_[j]) continue;
        if (full_here > 0 && enough()) continue;  // no more of them could be tried
        path_.assign(1, e);
        for (Vertex s = y; next_[s] >= 0; s = graph_.head(path_.back())) path_.push_back(next_[s]);
        if (full_here > 0) {
          over_full->push_back(bundles_.number(path_));
          continue;
        }
        found = bundles_.number(path_);
        break;
      }
    }
  }
  for (std::int32_t j : subtree) below_[j] = 0;
  return found;
}

// Hangs what is missing or was taken off, and moves edges of other trees for it, up to `levels` deep.
bool Mending::place(Place at, int levels) {
  if (searches_left_ <= 0 || work_left_ < 0) return false;
  const Amount weight = bundles_[at.bundle].weight;
  std::vector<std::int32_t> over_full;
  const std::int32_t path = search(at, weight, levels > 0 ? kMostFull : 0, &over_full);
  if (path >= 0) {
    hang(at, path);
    return true;
  }
  open_.push_back(at.bundle);
  bool placed = false;
  for (std::size_t k = 0; k < over_full.size() && !placed && searches_left_ > 0; ++k) {
    const auto hopeless = [&](Arc e) { return bundles_.residual(e) < weight && failed_[e] == attempt_; };
    if (std::ranges::any_of(bundles_.path(over_full[k]), hopeless)) continue;
    const std::size_t mark = journal_.size();
    hang(at, over_full[k]);
    placed = true;
    for (std::size_t a = 0; placed && a < bundles_.path(over_full[k]).size(); ++a) {
      const Arc e = bundles_.path(over_full[k])[a];
      placed = bundles_.residual(e) >= 0 || relieve(e, levels - 1);
      if (!placed) failed_[e] = attempt_;
    }
    if (!placed) roll_back(mark);
  }
  open_.pop_back();
  return placed;
}

// Moves edges off an arc that carries too much.
bool Mending::relieve(Arc full, int levels) {
  auto& users = users_[full];
  for (std::size_t k = users.size(); k-- > 0 && bundles_.residual(full) < 0;) {
    --work_left_;
    if (searches_left_ <= 0 || work_left_ < 0) return false;
    if (k >= users.size()) continue;  // an exchange deeper down has swept the list
    const Place other = users[k];
    if (std::ranges::find(open_, other.bundle) != open_.end()) continue;
    const bool moved = std::ranges::any_of(journal_, [&](const Step& step) { return step.place.bundle == other.bundle; });
    if (!uses(other, full)) {
      if (moved) continue;  // it may come back
      users[k] = users.back();
      users.pop_back();
      continue;
    }
    const Amount excess = -bundles_.residual(full), weight = bundles_[other.bundle].weight;
    if (weight > excess && may_split_ && !moved) {
      const std::int32_t old = bundles_[other.bundle].via[bundles_.index(other.v)];
      bundles_.change_residual(old, excess);
      const std::int32_t path = search(other, excess, 0, nullptr);
      bundles_.change_residual(old, -excess);
      if (path < 0) continue;
      split(other.bundle, excess);
      take_off(other);
      hang(other, path);
      continue;
    }
    const std::size_t mark = journal_.size();
    take_off(other);
    if (!place(other, levels)) roll_back(mark);
  }
  return bundles_.residual(full) >= 0;
}

bool Mending::uses(Place at, Arc e) const {
  const std::int32_t path = bundles_[at.bundle].via[bundles_.index(at.v)];
  return path >= 0 && std::ranges::find(bundles_.path(path), e) != bundles_.path(path).end();
}

void Mending::note_use(Place at, std::int32_t path) {
  for (Arc e : bundles_.path(path)) users_[e].push_back(at);
}

void Mending::split(std::int32_t b, Amount amount) {
  const std::int32_t rest = bundles_.size();
  bundles_.split(b, amount);
  for (Vertex v : bundles_.terminals()) {
    const std::int32_t i = bundles_.index(v);
    if (bundles_[rest].via[i] >= 0) {
      note_use({rest, v}, bundles_[rest].via[i]);
    } else if (bundles_[rest].depth[i] < 0) {
      still_missing_.push_back({rest, v});
    }
  }
}

void Mending::hang(Place at, std::int32_t path) {
  journal_.push_back({at, kNone, bundles_[at.bundle].depth[bundles_.index(at.v)]});
  bundles_.hang(at.bundle, at.v, path);
  note_use(at, path);
}

void Mending::take_off(Place at) {
  const std::int32_t i = bundles_.index(at.v);
  journal_.push_back({at, bundles_[at.bundle].via[i], bundles_[at.bundle].depth[i]});
  bundles_.take_off(at.bundle, at.v);
}

void Mending::roll_back(std::size_t mark) {
  while (journal_.size() > mark) {
    const Step step = journal_.back();
    journal_.pop_back();
    if (step.path >= 0) {
      bundles_.hang(step.place.bundle, step.place.v, step.path);  // its users were not swept meanwhile
    } else {
      bundles_.take_off(step.place.bundle, step.place.v);
      if (step.depth < 0) bundles_.drop(step.place.bundle, step.place.v);
    }
  }
}

}  // namespace coppice
