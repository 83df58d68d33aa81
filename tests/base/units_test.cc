#include "base/units.h"

#include <gtest/gtest.h>

#include "base/carver.h"
#include "base/stream_hash.h"

namespace elasticmem {
namespace {

TEST(ParseBytes, UnderstandsUnitsAndShares) {
  const auto bytes = [](std::string_view text) { return ParseBytes(text, 1000).value(); };
  EXPECT_EQ(bytes("4096"), 4096u);
  EXPECT_EQ(bytes("4096B"), 4096u);
  EXPECT_EQ(bytes("2KiB"), 2048u);
  EXPECT_EQ(bytes("1.5 MiB"), 1572864u);
  EXPECT_EQ(bytes("2GiB"), 2147483648u);
  EXPECT_EQ(bytes("3KB"), 3000u);
  EXPECT_EQ(bytes("4800MB"), 4800000000u);
  EXPECT_EQ(bytes("1GB"), 1000000000u);
  EXPECT_EQ(bytes("75%"), 750u);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* text : {"", "12 potatoes", "-1", "GiB", "1 TiBs", "nan", "inf", "1e30", "0x10"}) {
    const StatusOr<uint64_t> bytes = ParseBytes(text, 1000);
    EXPECT_FALSE(bytes.ok()) << text;
    EXPECT_NE(Message(bytes.status()).find(fmt::format("\"{}\"", text)), std::string_view::npos) << text;
  }
}

TEST(FormatBytes, ReadsWell) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(640 << 10), "640.0 KiB");
  EXPECT_EQ(FormatBytes(3_GiB / 2), "1.50 GiB");
}

TEST(Carver, CountsWhatItLaysOut) {
  alignas(64) std::byte buffer[512];
  Carver counting(nullptr), carving(buffer);
  for (Carver* carver : {&counting, &carving}) {
    carver->Take<float>(3);
    carver->Take<uint8_t>(65);
  }
  EXPECT_EQ(counting.used(), 192u);
  EXPECT_EQ(carving.used(), 192u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(carving.Take<float>(1)), buffer + 192);
}

TEST(StreamHash, IsTheHashOfTheWhole) {
  const std::vector<std::byte> bytes(1000, std::byte{7});
  StreamHash hash;
  hash.Add(std::span(bytes).first(1));
  hash.Add(std::span(bytes).subspan(1));
  EXPECT_EQ(hash.Digest(), HashOf(bytes));
}

TEST(Status, CarriesContextInFront) {
  EXPECT_EQ(Message(WithContext(InvalidInput("value {}", 3), "file.toml:2")), "file.toml:2: value 3");
  EXPECT_TRUE(WithContext(absl::OkStatus(), "x").ok());
  EXPECT_EQ(SystemError(ENOENT, "a/b").code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace elasticmem
