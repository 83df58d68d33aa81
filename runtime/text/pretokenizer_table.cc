#include "runtime/text/pretokenizer_table.h"

namespace elasticmem {
namespace {

// The patterns are those of the models' own tokenizer.json files, said in PCRE2's words; where llama.cpp's test vectors
// settle a question (falcon, deepseek, command-r), its reading of them.

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

constexpr std::string_view kMiniCpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

// Qwen2's without the English contractions.
constexpr std::string_view kUfakzeka =
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kBailingMoe =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";

// "(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+" in a form that needs no backtracking.
constexpr std::string_view kExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}(?:[\p{L}\p{M}]++| \p{L})*+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?)"
    R"(|\s*[\r\n]|\s+(?!\S)|\s+)";

constexpr std::string_view kJais2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S))"
    R"(|\s{1,2}(?!\S)|\s{1})";

constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kYoutuScripts =
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+)"
    R"(|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F})"
    R"(\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";

constexpr std::string_view kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                                     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                                     R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// GPT-4o's with runs of Han characters apart.
constexpr std::string_view kKimiK2 =
    R"(\p{Han}+)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kHanAndKana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kDeepSeekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSpark =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n])"
    R"(|\s+(?!\S)|\s+)";
constexpr std::string_view kAfmoeScripts =
    R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF})"
    R"(\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF})"
    R"(\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)";

constexpr std::string_view kCjk = R"([\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+)";
// Cased letters as DeepSeek LLM's tokenizer lists them (Unicode 12, without Georgian's lower case).
constexpr std::string_view kDeepSeekLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1})"
    R"(\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})"
    R"(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A})"
    R"(\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B})"
    R"(\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC})"
    R"(\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107})"
    R"(\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139})"
    R"(\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"
    R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A})"
    R"(\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2})"
    R"(\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+)";

// The whole run at a word's end; the look-behind keeps it from being tried at each of its characters.
constexpr std::string_view kSpaceAtEnd = R"((?<!\s)\s++\z)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
// "\d{1,3}(?=(?:\d{3})*\b)": groups from the right, unless a letter follows.
constexpr std::string_view kAyaDigits = R"((?<!\p{Nd})\p{Nd}++(?![\p{L}\p{M}\p{N}\p{Pc}]))";
constexpr std::string_view kDigitRun = R"(\p{Nd}++)";

constexpr PreTokenizerTraits kWholeWords = {.whole_words_first = true};
constexpr PreTokenizerTraits kLikeLlama3 = {.whole_words_first = true, .adds_bos = true};
constexpr PreTokenizerTraits kPlainUtf8 = {.byte_level = false};
constexpr PreTokenizerTraits kLikeGemma4 = {.byte_level = false, .whole_newlines = true, .adds_bos = true};

constexpr PreTokenizerSpec kSpecs[] = {
    {"default", {{{R"([\p{P}\$\+<=>\^~\|]+)"}, {kGpt2}, {R"(\p{N}+)"}, {R"([0-9][0-9][0-9])"}}}},
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat mellum a.x-4.0 modern-bert roberta-bpe "
     "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
     {{{kGpt2}}}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", {{{kLlama3}}}, kLikeLlama3},
    {"dbrx smaug-bpe", {{{kLlama3}}}},
    {"chatglm-bpe", {{{kLlama3}}}, {.has_default_bos = false}},
    {"glm4 glm5", {{{kLlama3}}}, {.whole_words_first = true, .has_default_bos = false}},
    {"jais-2", {{{kJais2}}}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", {{{R"(\p{N})"}, {kGpt2}}}},
    {"qwen2 stablelm2 hunyuan solar-open deepseek-r1-qwen kormo f2llmv2 megrez grok-2", {{{kQwen2}}}},
    {"qwen35", {{{kQwen35}}}},
    {"ufakzeka", {{{kUfakzeka}}}},
    {"laguna", {{{R"([^\n]+|[\n]+)"}, {kQwen2}}}},
    {"minicpm5", {{{R"(\p{N}{1,3})"}, {kMiniCpm5}}}, kWholeWords},
    {"seed-coder", {{{kSeedCoder}}}},
    {"bailingmoe bailingmoe2 llada-moe", {{{kBailingMoe}}}},
    {"exaone-moe", {{{kExaoneMoe}}}},
    {"falcon", {{{R"([\p{P}\$\+<=>\^~\|`]+)"}, {kGpt2}, {R"([0-9][0-9][0-9])"}}}},
    {"deepseek-llm",
     {{{R"([\r\n])"},
       {kDeepSeekLetters},
       {R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)"},
       {kSpaceAtEnd},
       {kCjk},
       {R"(\p{N}+)"}}}},
    {"deepseek-coder", {{{R"([\r\n])"}, {R"(\s?\p{L}+)"}, {R"(\s?\p{P}+)"}, {kCjk}, {R"(\p{N})"}}}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", {{{R"(\p{N}{1,3})"}, {kHanAndKana}, {kDeepSeekV3}}}},
    {"spark2_5", {{{R"(\p{N}{1,3})"}, {kHanAndKana}, {kSpark}, {R"(\p{N})"}}}},
    {"afmoe", {{{R"(\p{N}++)", SplitRule::Kind::kDigitsFromRight}, {kAfmoeScripts}, {kDeepSeekV3}}}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {{{kGpt4o}}}},
    {"granite-embed-multi-97m", {{{kGpt4o}}}, kWholeWords},
    {"tiny_aya cohere2moe", {{{kAyaDigits, SplitRule::Kind::kDigitsFromRight}, {kGpt4o}}}},
    {"youtu", {{{kYoutuScripts}, {kYoutu}}}, kWholeWords},
    {"tekken", {{{kTekken}}}, kLikeLlama3},
    {"kimi-k2", {{{kKimiK2}}}},
    {"superbpe", {{{R"(\p{N}+)"}, {kDigitRun, SplitRule::Kind::kDigitsFromRight}}}},
    {"bloom poro-chat gpt3-finnish", {{{kBloom}}}},
    {"viking", {{{kBloom}, {R"(\p{N})"}}}},
    {"chameleon",
     {{{R"(<sentinel:[0-9]+>)"},
       {R"(IMGIMG[A-I]{1,4}Z)"},
       {R"([\t\n]|    |  )"},
       {R"(\p{N})"},
       {R"([\p{P}!-/:-@\[-`{-~])"},
       {kGpt2}}},
     {.adds_bos = true}},
    {"gemma4 granite-embed-multi-311m", {{{"", SplitRule::Kind::kNewlineRuns}}}, kLikeGemma4},
    {"sarvam-moe", {{{"", SplitRule::Kind::kNewlineRuns}}}, kPlainUtf8},
};

}  // namespace

std::span<const PreTokenizerSpec> KnownPreTokenizers() { return kSpecs; }

}  // namespace elasticmem
