// The daemon as an operator meets it: how it starts, what it refuses, how it stops.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem {
namespace {

using ::testing::HasSubstr;
using testing::ExpectDone;
using testing::ExpectRefused;
using testing::kTales;
using testing::Outcome;
using testing::Program;
using testing::RunProgram;
using testing::SourcePath;

// A TCP socket of this machine.
class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {}
  ~Socket() { ::close(fd_); }
  // Port 0: any. Returns the port.
  uint16_t Listen() {
    sockaddr_in address = Address(0);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  bool Connect(uint16_t port) {
    sockaddr_in address = Address(port);
    return ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  void Write(const std::string& text) { EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size())); }
  // At least one byte, or "" at the end.
  std::string Read() {
    char buffer[65536];
    const ssize_t got = ::recv(fd_, buffer, sizeof(buffer), 0);
    return std::string(buffer, got > 0 ? static_cast<size_t>(got) : 0);
  }
  std::string ReadAll() {
    std::string all;
    for (std::string some; !(some = Read()).empty();) all += some;
    return all;
  }

 private:
  static sockaddr_in Address(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  const int fd_;
};

class ServeCommand : public ::testing::Test {
 protected:
  std::vector<std::string> Arguments(const std::string& listen, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"serve", "-m", SourcePath(kTales), "--memory", "16MiB", "--context", "1024",
                                          "--clients", "2", "--store-dir", folder_.path(), "--listen", listen};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static uint16_t FreePort() { return Socket().Listen(); }
  // Until the model is loaded.
  static void AwaitReady(uint16_t port) {
    for (int i = 0; i < 1000; ++i) {
      Socket socket;
      if (socket.Connect(port)) {
        socket.Write("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        const std::string reply = socket.ReadAll();
        if (reply.find("200 OK") != std::string::npos) return;
        EXPECT_THAT(reply, HasSubstr("503 Service Unavailable"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "the daemon does not get ready";
  }
  static void Ask(Socket& socket, uint16_t port, const std::string& request) {
    EXPECT_TRUE(socket.Connect(port));
    socket.Write(request);
  }
  static std::string Completion(int tokens) {
    const std::string body =
        R"({"prompt": "Once upon a time", "stream": true, "ignore_eos": true, "max_tokens": )" + std::to_string(tokens) + "}";
    return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  ScratchFolder folder_;
};

TEST_F(ServeCommand, AnswersAndStopsWhenAsked) {
  const uint16_t port = FreePort();
  Program program(Arguments("127.0.0.1:" + std::to_string(port), {"--alias", "fairy"}));
  AwaitReady(port);
  Socket models;
  Ask(models, port, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(models.ReadAll(), HasSubstr("\"id\":\"fairy\""));
  // What runs is given the time to end.
  Socket stream;
  Ask(stream, port, Completion(60));
  std::string answer = stream.Read();
  program.Signal(SIGTERM);
  answer += stream.ReadAll();
  EXPECT_THAT(answer, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(answer, HasSubstr("data: [DONE]"));
  const Outcome outcome = program.Wait();
  ExpectDone(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("method=\"POST\" path=\"/v1/completions\" status=200"));
  EXPECT_THAT(outcome.err, HasSubstr("generated_tokens=60"));
  EXPECT_EQ(outcome.err.find("Once upon"), outcome.err.rfind("Once upon"));  // that of the curl line; prompts are not logged
  EXPECT_THAT(outcome.err, HasSubstr("listening on http://127.0.0.1:" + std::to_string(port)));
}

TEST_F(ServeCommand, WhatTakesTooLongIsToldOfTheStop) {
  const uint16_t port = FreePort();
  Program program(Arguments("127.0.0.1:" + std::to_string(port), {"--grace", "0"}));
  AwaitReady(port);
  Socket stream;
  Ask(stream, port, Completion(900));
  std::string answer = stream.Read();
  program.Signal(SIGTERM);
  answer += stream.ReadAll();
  EXPECT_THAT(answer, HasSubstr("the server is stopping"));
  ExpectDone(program.Wait());
}

TEST_F(ServeCommand, TheSecondSignalMeansIt) {
  const uint16_t port = FreePort();
  Program program(Arguments("127.0.0.1:" + std::to_string(port)));
  AwaitReady(port);
  Socket stream, waiting;
  Ask(stream, port, Completion(900));
  Ask(waiting, port, "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_THAT(stream.Read(), HasSubstr("200 OK"));
  program.Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  program.Signal(SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  ExpectDone(program.Wait());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(ServeCommand, RefusesWhatItCannotListenOn) {
  for (const std::string listen : {"8080", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:80x"}) {
    ExpectRefused(RunProgram(Arguments(listen)), {"--listen", listen, "HOST:PORT"});
  }
  ExpectRefused(RunProgram(Arguments("no.such.host:80", {"--without-keys"})), {"no.such.host"});
  Socket taken;
  const std::string listen = "127.0.0.1:" + std::to_string(taken.Listen());
  ExpectRefused(RunProgram(Arguments(listen)), {"cannot listen", listen});
}

TEST_F(ServeCommand, KeysAreWantedAndReadAgain) {
  const std::string path = folder_.Path("keys");
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  // printf %s secret-1 | sha256sum, and of secret-2
  const std::string first = "f7e7c36e458e80e6b6a2c67d0a9ec09bd718dadd7bfa8d6bf6e7ad526e46c2f7";
  const std::string second = "f4b6bb6548129dacf11c1a9c4dffffefd4aa6b21fcf4e9754cc03b731cbe7c25";
  write("# two\nphone " + first + "\n");
  const uint16_t port = FreePort();
  Program program(Arguments("127.0.0.1:" + std::to_string(port), {"--keys", path}));
  AwaitReady(port);
  const auto status = [&](const std::string& head, const std::string& key) {
    Socket socket;
    Ask(socket, port, head + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + (key.empty() ? "" : "Authorization: Bearer " + key + "\r\n") + "\r\n");
    return socket.ReadAll();
  };
  EXPECT_THAT(status("GET /health", ""), HasSubstr("200 OK"));
  EXPECT_THAT(status("GET /v1/models", ""), HasSubstr("401 Unauthorized"));
  EXPECT_THAT(status("GET /v1/models", "secret-2"), HasSubstr("not known"));
  EXPECT_THAT(status("GET /v1/models", "secret-1"), HasSubstr("200 OK"));
  EXPECT_THAT(status("OPTIONS /v1/models", ""), HasSubstr("204 No Content"));
  write("phone " + second + "\n");
  program.Signal(SIGHUP);
  std::string reply;
  for (int i = 0; i < 500 && reply.find("200 OK") == std::string::npos; ++i) reply = status("GET /v1/models", "secret-2");
  EXPECT_THAT(reply, HasSubstr("200 OK"));
  EXPECT_THAT(status("GET /v1/models", "secret-1"), HasSubstr("401 Unauthorized"));
  // What is wrong changes nothing.
  write("phone short\n");
  program.Signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_THAT(status("GET /v1/models", "secret-2"), HasSubstr("200 OK"));
  program.Signal(SIGTERM);
  const Outcome outcome = program.Wait();
  ExpectDone(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("the old keys stay"));
  EXPECT_EQ(outcome.err.find("secret"), std::string::npos);
}

TEST_F(ServeCommand, WrongKeyFilesAreRefused) {
  const std::string path = folder_.Path("keys");
  const std::string sum(64, 'a');
  const auto refused = [&](const std::string& text, std::initializer_list<std::string_view> parts) {
    std::ofstream(path) << text;
    ExpectRefused(RunProgram(Arguments("127.0.0.1:0", {"--keys", path})), parts);
  };
  refused("", {path, "no key"});
  refused("name\n", {path + ":1", "SHA-256"});
  refused("# x\nname " + sum + "0\n", {path + ":2"});
  refused("name " + sum.substr(1) + "g\n", {path + ":1"});
  refused("name " + sum + "\nname " + std::string(64, 'b') + "\n", {path + ":2", "twice"});
  refused("name " + sum + "\nother " + sum + "\n", {path + ":2", "\"name\""});
  ExpectRefused(RunProgram(Arguments("127.0.0.1:0", {"--keys", path + "-not-there"})), {"-not-there"});
}

TEST_F(ServeCommand, LogsJsonForMachines) {
  const uint16_t port = FreePort();
  Program program(Arguments("127.0.0.1:" + std::to_string(port), {"--log", "json"}));
  AwaitReady(port);
  Socket socket;
  Ask(socket, port, "GET /no\"such HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string reply = socket.ReadAll();
  program.Signal(SIGTERM);
  const Outcome outcome = program.Wait();
  ExpectDone(outcome);
  std::istringstream lines(outcome.err);
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) continue;
    const auto json = nlohmann::json::parse(line);
    if (json.value("path", "") != "/no\"such") continue;
    found = true;
    EXPECT_EQ(json["status"], 404);
    EXPECT_THAT(reply, HasSubstr("X-Request-Id: " + json["request"].get<std::string>()));
  }
  EXPECT_TRUE(found) << outcome.err;
  ExpectRefused(RunProgram(Arguments("127.0.0.1:0", {"--log", "loud"})), {"--log", "loud", "json"});
}

TEST_F(ServeCommand, ChecksWithoutStarting) {
  const Outcome checked = RunProgram(Arguments("127.0.0.1:0", {"--check"}));
  ExpectDone(checked);
  EXPECT_THAT(checked.out, HasSubstr("KV for 2 x 512 tokens"));
  ExpectRefused(RunProgram(Arguments("0.0.0.0:0", {"--check"})), {"--without-keys"});
  ExpectRefused(RunProgram({"serve", "-m", SourcePath(kTales), "--memory", "100KiB", "--check"}), {"too small"});
  // What the configs of the project say.
  const std::string config = SourcePath("configs/serve-tales.toml");
  ExpectDone(RunProgram({"serve", "--config", config, "-m", SourcePath(kTales), "--check"}));
}

TEST_F(ServeCommand, OthersReachItOnlyWhenToldInSoManyWords) {
  ExpectRefused(RunProgram(Arguments("0.0.0.0:0")), {"--listen", "0.0.0.0:0", "--without-keys"});
}

}  // namespace
}  // namespace elasticmem
