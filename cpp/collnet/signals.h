// Threads of the plugin: signals are the application's, and its handlers never run on them.
#pragma once

#include <signal.h>

namespace coppice::collnet {

/// Threads that begin while one of these lives take no signals.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace coppice::collnet
