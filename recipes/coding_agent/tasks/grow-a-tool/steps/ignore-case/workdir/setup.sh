#!/bin/bash
chmod a-w samples/*.txt
