# MUST: an answer larger than what may come back is not carried to the host.
with open("answer.txt", "wb") as file:
    file.write(b"x" * (6 << 20))
for number in range(200):
    with open(f"part{number}.txt", "wb") as file:
        file.write(b"x" * 20000)
print("main done")
