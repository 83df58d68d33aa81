// Stop texts: cut exactly, whatever the pieces that the text comes in.
#include "runtime/text/stop_filter.h"

#include <gtest/gtest.h>

namespace elasticmem {
namespace {

// What a text in pieces of `size` bytes shows.
std::string Shown(const std::string& text, const std::vector<std::string>& stops, size_t size, bool* stopped = nullptr) {
  StopFilter filter(stops);
  std::string shown;
  for (size_t at = 0; at < text.size(); at += size) shown += filter.Add(text.substr(at, size));
  if (stopped) *stopped = filter.stopped();
  return shown + filter.Finish();
}

TEST(StopFilter, CutsAtTheFirstStopWhateverThePieces) {
  for (size_t size = 1; size < 20; ++size) {
    bool stopped = false;
    EXPECT_EQ(Shown("one two three two", {"two"}, size, &stopped), "one ") << size;
    EXPECT_TRUE(stopped);
    EXPECT_EQ(Shown("aaab and more", {"aab"}, size), "a") << size;
    EXPECT_EQ(Shown("abcabd", {"abd", "cab"}, size), "ab") << size;
    EXPECT_EQ(Shown("no such thing", {"never", ""}, size, &stopped), "no such thing") << size;
    EXPECT_FALSE(stopped);
    EXPECT_EQ(Shown("ends with the begin", {"beginning"}, size), "ends with the begin") << size;
  }
}

TEST(StopFilter, OfTwoInOnePieceTheEarlierCounts) {
  EXPECT_EQ(Shown("x STOP y END", {"END", "STOP"}, 100), "x ");
}

TEST(StopFilter, HoldsBackNoMoreThanWhatMayBecomeAStop) {
  StopFilter filter({"\n\n", "User:"});
  EXPECT_EQ(filter.Add("hello\n"), "hello");
  EXPECT_EQ(filter.Add("Use"), "\n");
  EXPECT_EQ(filter.Add("ful"), "Useful");
  EXPECT_EQ(filter.Add("\n\nrest"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.Add("nothing more"), "");
  EXPECT_EQ(filter.Finish(), "");
}

}  // namespace
}  // namespace elasticmem
