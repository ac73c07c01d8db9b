// Kernels include this by habit; the language is in the force-included header, and there is no runtime API here.
#pragma once
#include "gin_host.h"
