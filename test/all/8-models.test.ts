// By itself, as it changes the environment of its process.

import "../models.test.ts";
