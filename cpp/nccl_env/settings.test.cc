#include "nccl_env/settings.h"

#include "testing/testing.h"

using namespace coppice::nccl_env;

namespace {

std::string refusal(const std::string& text) {
  try {
    parse_settings(text, "f");
  } catch (const Refusal& said) {
    return said.what();
  }
  return "";
}

}  // namespace

TEST(settings_of_a_site) {
  Settings made = parse_settings("# head\n\n  NCCL_ALGO=Ring \r\nNCCL_DEBUG_FILE=a=b\nCOPPICE_X=\nRCCL_TREES=0 1|1 0", "f");
  CHECK_EQ(made.size(), std::size_t{4});
  CHECK_EQ(made["NCCL_ALGO"], std::string("Ring"));
  CHECK_EQ(made["NCCL_DEBUG_FILE"], std::string("a=b"));
  CHECK_EQ(made["COPPICE_X"], std::string());
  CHECK_EQ(made["RCCL_TREES"], std::string("0 1|1 0"));
  CHECK_EQ(parse_settings("", "f").size(), std::size_t{0});
}

TEST(settings_refuse_with_the_line) {
  CHECK_EQ(refusal("NCCL_A=1\nNCCL_B\n"), std::string("f:2: expected NAME=VALUE, found NCCL_B"));
  CHECK(refusal("PATH=/bin\n").find("f:1: expected a name of NCCL_") == 0);
  CHECK(refusal("NCCL_=1\n").find("f:1:") == 0);
  CHECK(refusal("NCCL_a=1\n").find("f:1:") == 0);
  CHECK(refusal("NCCL_A=1\nNCCL_A=2\n").find("f:2: expected each name once") == 0);
}
