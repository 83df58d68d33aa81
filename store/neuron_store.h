#pragma once
#include "runtime/model/neuron_store.h"
